"""Scale a loss so that fp16 gradients stay alive, and find the scale by trying: a twin of `torch.amp.GradScaler`.

Each step gives the same scale, the same skips and the same weights as PyTorch's, to the last bit, and the state of
either loads into the other. What is left out is plumbing: gradients on several devices at once, and optimizers that
unscale in their own fused kernels (they get gradients that are unscaled already).

Source: torch/amp/grad_scaler.py for the behaviour, Micikevicius et al. 2018 (arXiv:1710.03740) for the idea.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, cast

import torch
from torch import Tensor


class Stage(Enum):
    """What has happened to an optimizer since the last `update()`."""

    READY = "ready"
    UNSCALED = "unscaled"
    STEPPED = "stepped"


@dataclass
class _Record:
    """One optimizer's stage, and 1.0 if one of its gradients was inf or NaN (None while none was looked at)."""

    stage: Stage = Stage.READY
    found_inf: Tensor | None = None


class DynamicScaler:
    """Multiply losses by a scale that halves when a gradient overflows and doubles after a clean streak.

    The scale is a float32 number on the device of the first loss. With `enabled=False` every method hands through what
    it is given, as in PyTorch; but "cuda" without a GPU does not switch it off.

    Raises ValueError for an `init_scale` that is not positive and finite in float32, a `growth_factor` of 1 or less, a
    `backoff_factor` outside of 0 to 1, and a `growth_interval` below 1. (PyTorch looks at two of these.)
    Example: scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()
    """

    def __init__(
        self,
        device: str = "cpu",
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        """Start at `init_scale`. `device` is there for PyTorch's sake: the scale lives where the first loss does."""
        _check(init_scale, growth_factor, backoff_factor, growth_interval)
        self._enabled = enabled
        self._init_scale, self._scale = init_scale, cast(Tensor | None, None)  # a tensor from the first scale() on
        self._growth_factor, self._backoff_factor = growth_factor, backoff_factor
        self._growth_interval, self._growth_tracker = growth_interval, 0
        self._records: dict[int, _Record] = {}

    def scale(self, outputs: Any) -> Any:
        """Return a tensor, or a list, tuple or other iterable of tensors, times the scale; any shape."""
        if not self._enabled:
            return outputs
        if isinstance(outputs, Tensor):
            if self._scale is None:
                self._scale = torch.tensor(self._init_scale, dtype=torch.float32, device=outputs.device)
            return outputs * self._scale.to(outputs.device)
        if isinstance(outputs, Iterable) and not isinstance(outputs, str):
            scaled = map(self.scale, outputs)
            return type(outputs)(scaled) if isinstance(outputs, list | tuple) else scaled
        raise ValueError(
            f"scale() takes a Tensor or an iterable of Tensors, and got {outputs!r}: pass the loss, before .item()."
        )

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the optimizer's gradients by the scale, in place, and note whether one is inf or NaN."""
        if not self._enabled:
            return
        record = self._record_of(optimizer, "unscale_")
        if record.stage is Stage.UNSCALED:
            raise RuntimeError(
                "unscale_() has already been called on this optimizer since the last update(): its gradients would be "
                "divided twice. Call it once a step, and update() at the end of every step, skipped or not."
            )
        if record.stage is Stage.STEPPED:
            raise RuntimeError("unscale_() is being called after step(), too late to matter: call it before step().")
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        if any(gradient.dtype == torch.float16 for gradient in gradients):
            raise ValueError(
                "Attempting to unscale FP16 gradients, which would underflow again: the weights are float16. Keep them "
                "in float32 (no model.half()) and let autocast cast copies."
            )
        if gradients:
            scale = self._current_scale("unscale_")
            record.found_inf = torch.zeros((), device=scale.device)
            values = [gradient._values() if gradient.is_sparse else gradient for gradient in gradients]
            # For each: found_inf = 1 where not all is finite, then gradient *= 1 / scale. One pass over the memory.
            inverse = scale.double().reciprocal().float()
            torch._amp_foreach_non_finite_check_and_unscale_(values, record.found_inf, inverse)
        record.stage = Stage.UNSCALED

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        """Unscale if that is still to do; then return `optimizer.step(…)`, or None if a gradient overflowed."""
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if "closure" in kwargs:
            raise RuntimeError("Closure use is not supported: it would compute gradients after they were checked.")
        record = self._record_of(optimizer, "step")
        if record.stage is Stage.STEPPED:
            raise RuntimeError("step() has already been called since the last update(): call update() once a step.")
        if record.stage is Stage.READY:
            self.unscale_(optimizer)
        if record.found_inf is None:
            raise AssertionError(
                "No inf checks were recorded for this optimizer: none of its parameters has a gradient. Was backward() "
                "called on the scaled loss, and does the loss depend on these parameters?"
            )
        result = None if record.found_inf.item() else optimizer.step(*args, **kwargs)
        record.stage = Stage.STEPPED
        return result

    def update(self, new_scale: float | Tensor | None = None) -> None:
        """Halve the scale after an overflow, double it after a streak of clean steps; or set it to `new_scale`."""
        if not self._enabled:
            return
        scale = self._current_scale("update")
        found = [record.found_inf for record in self._records.values() if record.found_inf is not None]
        if new_scale is not None:
            scale.fill_(_positive(float(new_scale), "new_scale"))
        elif not found:
            raise AssertionError(
                "No inf checks were recorded prior to update(): call step() or unscale_() for each optimizer first."
            )
        elif any(flag.item() for flag in found):
            _multiply(scale, self._backoff_factor)
            self._growth_tracker = 0
        else:
            self._growth_tracker += 1
            if self._growth_tracker == self._growth_interval:
                _multiply(scale, self._growth_factor)
                self._growth_tracker = 0
        self._records = {}

    def get_scale(self) -> float:
        """Return the scale; 1.0 where scaling is off."""
        if not self._enabled:
            return 1.0
        return self._init_scale if self._scale is None else self._scale.item()

    def is_enabled(self) -> bool:
        """Tell whether scaling is on."""
        return self._enabled

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs, under PyTorch's names; call it after `update()`."""
        if not self._enabled:
            return {}
        return {
            "scale": self.get_scale(),
            "growth_factor": self._growth_factor,
            "backoff_factor": self._backoff_factor,
            "growth_interval": self._growth_interval,
            "_growth_tracker": self._growth_tracker,
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a state of this class or of `torch.amp.GradScaler`.

        Raises RuntimeError for an empty state, ValueError for one that no scaler wrote; nothing is changed then.
        """
        if not self._enabled:
            return
        if not state_dict:
            raise RuntimeError("The state is empty: it is that of a scaler with enabled=False. Start with a new one.")
        missing = [name for name in self.state_dict() if name not in state_dict]
        if missing:
            raise ValueError(f"This is no scaler's state, for it lacks {', '.join(missing)}: pass scaler.state_dict().")
        scale, growth, backoff, interval, tracker = (state_dict[name] for name in self.state_dict())
        _check(scale, growth, backoff, interval, tracker)
        self._init_scale, self._growth_factor, self._backoff_factor = scale, growth, backoff
        self._growth_interval, self._growth_tracker = interval, tracker
        if self._scale is not None:
            self._scale.fill_(scale)

    def _record_of(self, optimizer: torch.optim.Optimizer, method: str) -> _Record:
        self._current_scale(method)
        return self._records.setdefault(id(optimizer), _Record())

    def _current_scale(self, method: str) -> Tensor:
        if self._scale is None:
            raise AssertionError(
                f"{method}() comes before the first scale(): write scaler.scale(loss).backward(), not loss.backward()."
            )
        return self._scale


def _multiply(scale: Tensor, factor: float) -> None:
    """Multiply in place, in float64 and then rounded, as PyTorch does; a scale that would leave float32 stays."""
    product = (scale.double() * factor).float()
    if product.isfinite():
        scale.copy_(product)


def _positive(value: Any, name: str) -> float:
    """Return `value` if it is a positive and finite number in float32; raise ValueError if not."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} is {value!r}, not a number: pass a float such as 2.0**16.")
    rounded = torch.tensor(float(value)).item()  # 1e39 is inf in float32, and 1e-46 is 0
    if not (math.isfinite(rounded) and rounded > 0):
        raise ValueError(f"{name} is {value!r}, and a scale is a positive, finite float32: start with 2.0**16.")
    return float(value)


def _whole(value: Any, at_least: int, name: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise ValueError(f"{name} is {value!r}, and it counts steps: pass a whole number of at least {at_least}.")


def _check(scale: Any, growth_factor: Any, backoff_factor: Any, growth_interval: Any, growth_tracker: Any = 0) -> None:
    """Raise ValueError for the first of a scaler's numbers that makes no sense, with what would."""
    _positive(scale, "init_scale")
    if not _positive(growth_factor, "growth_factor") > 1:
        raise ValueError(f"growth_factor is {growth_factor!r}, and growing takes more than 1: usually 2.0.")
    if not _positive(backoff_factor, "backoff_factor") < 1:
        raise ValueError(f"backoff_factor is {backoff_factor!r}, and backing off takes less than 1: usually 0.5.")
    _whole(growth_interval, 1, "growth_interval")
    _whole(growth_tracker, 0, "_growth_tracker")
