"""Scale a loss so that fp16 gradients survive, and adapt the scale: a twin of torch's GradScaler.

It has every public method of `torch.amp.GradScaler`. Each step gives the same scale, the same skips
and the same weights, to the last bit, and the state of either loads into the other. Only plumbing
is left out: gradients on several devices at once, and fused optimizers that unscale in their own
kernels (they get gradients that are unscaled already).

Source: torch/amp/grad_scaler.py; the idea is from Micikevicius et al. 2018 (arXiv:1710.03740)
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from amp_course.scaler.options import check_options, positive


class Stage(Enum):
    """What has happened to an optimizer since the last `update()`."""

    READY = "ready"
    UNSCALED = "unscaled"
    STEPPED = "stepped"


@dataclass
class _Record:
    """One optimizer's stage, and 1.0 if one of its gradients was inf or NaN; None: not checked."""

    stage: Stage = Stage.READY
    found_inf: Tensor | None = None


class DynamicScaler:
    """Multiply losses by a scale that halves after an overflow and doubles after a clean streak.

    The scale is a float32 number on the device of the first loss. With `enabled=False`, `scale`
    returns the loss unchanged, `step` always steps, and the other methods do nothing. "cuda"
    without a GPU warns and is disabled, as in PyTorch. As in PyTorch, too, a scale that has fallen
    to 0 is fatal: gradients of 0 pass the check, and unscaling makes them 0 · inf = NaN.

    Raises ValueError for an `init_scale` that is not positive and finite in float32, a
    `growth_factor` of 1 or less, a `backoff_factor` not between 0 and 1, and a `growth_interval`
    below 1. (PyTorch checks two of these.)
    Example: scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()
    """

    def __init__(
        self,
        device: str = "cuda",
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        check_options(init_scale, growth_factor, backoff_factor, growth_interval)
        if enabled and device == "cuda" and not torch.cuda.is_available():
            warnings.warn(
                'there is no CUDA here, so the scaler is disabled: pass "cpu" to scale on a CPU',
                stacklevel=2,
            )
            enabled = False
        self._enabled = enabled
        self._init_scale = init_scale
        self._scale: Tensor | None = None  # from the first scale() on
        self._growth_factor, self._backoff_factor = growth_factor, backoff_factor
        self._growth_interval, self._growth_tracker = growth_interval, 0
        self._records: dict[int, _Record] = {}

    def scale(self, outputs: Any) -> Any:
        """Return a tensor of any shape, or an iterable of tensors, times the scale."""
        if not self._enabled:
            return outputs
        if isinstance(outputs, Tensor):
            if self._scale is None:
                self._scale = torch.tensor(
                    self._init_scale, dtype=torch.float32, device=outputs.device
                )
            return outputs * self._scale.to(outputs.device)
        if isinstance(outputs, Iterable) and not isinstance(outputs, str):
            scaled = map(self.scale, outputs)
            return type(outputs)(scaled) if isinstance(outputs, list | tuple) else scaled
        raise ValueError(
            f"scale() takes a Tensor or an iterable of Tensors, and got {outputs!r}: pass the "
            f"loss, before .item()."
        )

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the optimizer's gradients by the scale, in place; record if any is inf or NaN."""
        if not self._enabled:
            return
        record = self._record_of(optimizer, "unscale_")
        if record.stage is Stage.UNSCALED:
            raise RuntimeError(
                "unscale_() has already been called on this optimizer since the last update(): its "
                "gradients would be divided twice. Call it once a step, and update() at the end of "
                "every step, skipped or not."
            )
        if record.stage is Stage.STEPPED:
            raise RuntimeError(
                "unscale_() is being called after step(), too late to have an effect: call it "
                "before step()."
            )
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        gradients = [p.grad for p in parameters if p.grad is not None]
        if any(gradient.dtype == torch.float16 for gradient in gradients):
            raise ValueError(
                "Attempting to unscale FP16 gradients, which would underflow again: the weights "
                "are float16. Keep them in float32 (no model.half()) and let autocast cast copies."
            )
        if gradients:
            scale = self._current_scale("unscale_")
            record.found_inf = torch.zeros((), device=scale.device)
            values = [grad._values() if grad.is_sparse else grad for grad in gradients]
            inverse = scale.double().reciprocal().float()
            for dtype in {value.dtype for value in values}:
                # sets found_inf to 1 if a value is not finite, and multiplies all by 1 / scale
                alike = [value for value in values if value.dtype == dtype]
                torch._amp_foreach_non_finite_check_and_unscale_(alike, record.found_inf, inverse)
        record.stage = Stage.UNSCALED

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        """Unscale if need be; return `optimizer.step(…)`, or None if a gradient overflowed."""
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if "closure" in kwargs:
            raise RuntimeError(
                "Closure use is not supported: it would compute gradients after they were checked."
            )
        record = self._record_of(optimizer, "step")
        if record.stage is Stage.STEPPED:
            raise RuntimeError(
                "step() has already been called since the last update(): call update() once a step."
            )
        if record.stage is Stage.READY:
            self.unscale_(optimizer)
        if record.found_inf is None:
            raise AssertionError(
                "No inf checks were recorded for this optimizer: none of its parameters has a "
                "gradient. Was backward() called on the scaled loss, and does the loss depend on "
                "these parameters?"
            )
        result = None if record.found_inf.item() else optimizer.step(*args, **kwargs)
        record.stage = Stage.STEPPED
        return result

    def update(self, new_scale: float | Tensor | None = None) -> None:
        """Back off after an overflow, grow after a streak of clean steps; or set `new_scale`."""
        if not self._enabled:
            return
        scale = self._current_scale("update")
        flags = [of.found_inf for of in self._records.values() if of.found_inf is not None]
        if new_scale is not None:
            scale.fill_(positive(float(new_scale), "new_scale"))
        elif not flags:
            raise AssertionError(
                "No inf checks were recorded prior to update(): call step() or unscale_() for each "
                "optimizer first."
            )
        elif any(flag.item() for flag in flags):
            _multiply(scale, self._backoff_factor)
            self._growth_tracker = 0
        else:
            self._growth_tracker += 1
            if self._growth_tracker == self._growth_interval:
                _multiply(scale, self._growth_factor)
                self._growth_tracker = 0
        self._records = {}

    def get_scale(self) -> float:
        if not self._enabled:
            return 1.0
        return self._init_scale if self._scale is None else self._scale.item()

    def get_growth_factor(self) -> float:
        return self._growth_factor

    def set_growth_factor(self, new_factor: float) -> None:
        check_options(growth_factor=new_factor)
        self._growth_factor = new_factor

    def get_backoff_factor(self) -> float:
        return self._backoff_factor

    def set_backoff_factor(self, new_factor: float) -> None:
        check_options(backoff_factor=new_factor)
        self._backoff_factor = new_factor

    def get_growth_interval(self) -> int:
        return self._growth_interval

    def set_growth_interval(self, new_interval: int) -> None:
        check_options(growth_interval=new_interval)
        self._growth_interval = new_interval

    def _get_growth_tracker(self) -> int:
        """Return the length of the clean streak: private in PyTorch too, yet people log it."""
        return self._growth_tracker if self._enabled else 0

    def is_enabled(self) -> bool:
        return self._enabled

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs, with PyTorch's names; call it after `update()`."""
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
        """Continue from a state of this class or of `torch.amp.GradScaler`.

        Raises RuntimeError for an empty state, ValueError for one of something else, and then
        changes nothing.
        """
        if not self._enabled:
            return
        if not state_dict:
            raise RuntimeError(
                "The state is empty: it comes from a scaler with enabled=False. Start with a new "
                "scaler."
            )
        missing = [name for name in self.state_dict() if name not in state_dict]
        if missing:
            raise ValueError(
                f"This is not a scaler's state, because it lacks {', '.join(missing)}: pass "
                f"scaler.state_dict()."
            )
        scale, growth, backoff, interval, tracker = (state_dict[name] for name in self.state_dict())
        check_options(scale, growth, backoff, interval)
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
                f"{method}() comes before the first scale(): write scaler.scale(loss).backward(), "
                f"not loss.backward()."
            )
        return self._scale


def _multiply(scale: Tensor, factor: float) -> None:
    """Multiply in place, rounded from float64 as PyTorch does; a scale never leaves float32."""
    product = (scale.double() * factor).float()
    if product.isfinite():
        scale.copy_(product)
