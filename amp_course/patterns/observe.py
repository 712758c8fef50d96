"""Run one update of a training step and write down what it does: passes, gradients, calls and their order.

Nothing is changed by looking. Two things can be done on purpose, once a gradient has been computed: make it larger, and
put an inf into it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from amp_course.kit.random_state import random_state, set_random_state
from amp_course.patterns.seen import Batch, Flat, Meddling, NotedCall, Seen, Training


class Observer:
    """Hooks on a training while one update runs; all are gone afterwards."""

    def __init__(self, training: Training, meddling: Meddling | None = None) -> None:
        self.training, self.meddling = training, meddling or Meddling()
        self.micro = self.last = 0
        self.seen = Seen(training.scale())
        self._before: dict[Tensor, Tensor | None] = {}
        self._inside_scaler_step = False
        self._owner = {p: number for number, held in enumerate(training.parameters) for p in held}
        self._offset: dict[Tensor, slice] = {}
        self._sizes = []
        for held in training.parameters:
            start = 0
            for p in held:
                self._offset[p] = slice(start, start := start + p.numel())
            self._sizes.append(start)
        self._poison_left = set(self.meddling.poisoned)

    def run(self, group: Sequence[Batch], *, reference: bool = False) -> Seen:
        """Call the step for each micro-batch of a group, which is one update. What it raises is kept in `.error`."""
        seen, training = self.seen, self.training
        self.last = len(group) - 1
        weights = [[p.detach().clone() for p in held] for held in training.parameters]
        with ExitStack() as stack:
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")  # the scheduler's warning about its order is judged, not shown
            for self.micro, batch in enumerate(group):
                wanted = reference and training.loss is not None and not seen.reference_error
                if wanted and (flat := self.compare(batch)) is not None:
                    seen.references.append(flat)
                seen.contributions.append(self._zeros())
                with ExitStack() as hooks:
                    self._watch(hooks)
                    try:
                        if training.hint_last:
                            training.train_step(*batch, last=self.micro == self.last)
                        else:
                            training.train_step(*batch)
                    except Exception as error:
                        seen.error = error
                        break
                    finally:
                        seen.left_open |= torch.is_autocast_enabled(training.device_type)
                if seen.left_open:
                    break
        seen.scale_after = training.scale()
        for number, (held, was) in enumerate(zip(training.parameters, weights, strict=True)):
            seen.changed[number] = any(not torch.equal(p, w) for p, w in zip(held, was, strict=True))
        return seen

    def _zeros(self) -> Flat:
        return [torch.zeros(size, device=self.training.device_type) for size in self._sizes]

    def _watch(self, hooks: ExitStack) -> None:
        for p in self._owner:
            if p.requires_grad:
                hooks.callback(p.register_hook(self._arriving(p)).remove)
                hooks.callback(p.register_post_accumulate_grad_hook(self._arrived).remove)
        for number, optimizer in enumerate(self.training.optimizers):
            hooks.callback(optimizer.register_step_pre_hook(self._stepping(number)).remove)
        for model in self.training.models:
            for module in model.modules():
                if not any(module.children()):
                    hooks.callback(module.register_forward_hook(self._left_layer).remove)
        if self.training.scaler is not None:
            self._wrap_scaler(hooks, self.training.scaler)
        for number, scheduler in enumerate(self.training.schedulers):
            self._wrap(hooks, scheduler, "step", lambda *_, n=number: self._note("scheduler", n))

    def _note(self, name: str, number: int = 0) -> None:
        self.seen.calls.append(NotedCall(name, number, self.micro))

    def _wrap(self, hooks: ExitStack, owner: Any, name: str, before: Callable[..., None]) -> None:
        original = getattr(owner, name)
        own = vars(owner).get(name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            before(*args)
            return original(*args, **kwargs)

        setattr(owner, name, watched)
        hooks.callback(lambda: vars(owner).pop(name, None) if own is None else setattr(owner, name, own))

    def _wrap_scaler(self, hooks: ExitStack, scaler: torch.amp.GradScaler) -> None:
        index = {id(optimizer): n for n, optimizer in enumerate(self.training.optimizers)}
        step = scaler.step

        def watched_step(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            self._note("scaler.step", index.get(id(optimizer), -1))
            self._inside_scaler_step = True
            try:
                return step(optimizer, *args, **kwargs)
            finally:
                self._inside_scaler_step = False

        def unscale(optimizer: Any) -> None:
            if not self._inside_scaler_step:  # scaler.step unscales by itself
                self._note("unscale", index.get(id(optimizer), -1))

        scaler.step = watched_step  # type: ignore[method-assign]
        hooks.callback(lambda: vars(scaler).pop("step", None))
        self._wrap(hooks, scaler, "unscale_", unscale)
        self._wrap(hooks, scaler, "scale", lambda *_: self._note("scale"))
        self._wrap(hooks, scaler, "update", lambda *_: self._note("update"))

    def _left_layer(self, module: nn.Module, args: Any, output: Any) -> None:
        self.seen.modes.setdefault(module, module.training)
        if isinstance(output, Tensor) and output.is_floating_point():
            self.seen.dtypes.add(output.dtype)

    def _arriving(self, p: Tensor) -> Callable[[Tensor], None]:
        def hook(gradient: Tensor) -> None:
            before = None if p.grad is None else p.grad.detach().clone()
            if before is not None and self.micro == 0 and self.seen.backwards == 0:
                self.seen.stale = max(self.seen.stale, before.abs().max().item())
            owner = self._owner[p]
            earlier = (flat[owner][self._offset[p]] for flat in self.seen.contributions[:-1])
            if not self.seen.lost and (before is None or not before.any()):
                self.seen.lost = any(bool(part.any()) for part in earlier)
            self._before[p] = before

        return hook

    @torch.no_grad()
    def _arrived(self, p: Tensor) -> None:
        grad = p.grad
        assert grad is not None
        before = self._before.get(p)
        added = grad.detach() if before is None else grad.detach() - before
        self.seen.backwards += 1
        self.seen.in_autocast |= torch.is_autocast_enabled(self.training.device_type)
        self.seen.finite &= bool(added.isfinite().all())
        owner = self._owner[p]
        self.seen.contributions[-1][owner][self._offset[p]] += added.flatten().float()
        if self.meddling.factors is not None:
            grad.add_(added * (self.meddling.factors(self.micro) - 1.0))
        if owner in self._poison_left and self.micro == self.last:
            self._poison_left.discard(owner)
            grad.view(-1)[0] = torch.inf

    def _stepping(self, number: int) -> Callable[..., None]:
        def hook(optimizer: Any, *_: Any) -> None:
            found_inf = getattr(optimizer, "found_inf", None)  # fused optimizers look for themselves
            if found_inf is not None and found_inf.item():
                return
            self._note("step", number)
            scale = getattr(optimizer, "grad_scale", None)
            seen = torch.cat([_flat(p) for p in self.training.parameters[number]])
            self.seen.stepped_with.setdefault(number, []).append(seen if scale is None else seen / scale)

        return hook

    def compare(self, batch: Batch, dtype: torch.dtype | None = None) -> Flat | None:
        """Return the gradient of the reader's loss for one micro-batch, in fp32 or under autocast to a dtype.

        Buffers and random states are left as they were. None if the loss raised; the reason is kept.
        """
        training, scale = self.training, 1.0 if dtype is None else self.seen.scale
        assert training.loss is not None
        held = [p for p in self._owner if p.requires_grad]
        buffers = [(b, b.clone()) for model in training.models for b in model.buffers()]
        state, modes = random_state(), [(module, module.training) for module in training.modes]
        try:
            for module, mode in training.modes.items():
                module.training = mode
            with (
                torch.enable_grad(),
                torch.autocast(training.device_type, dtype=dtype, enabled=dtype is not None, cache_enabled=False),
            ):
                models = training.models
                loss = training.loss(models[0] if len(models) == 1 else list(models), *batch)
                total: Tensor = torch.stack([one.float() for one in loss]).sum() if isinstance(loss, tuple) else loss
            gradients = torch.autograd.grad(total * scale, held, allow_unused=True)
        except Exception as error:
            self.seen.reference_error = f"the fp32 loss raised {type(error).__name__}: {error}"
            return None
        finally:
            set_random_state(state)
            for module, mode in modes:
                module.training = mode
            with torch.no_grad():
                for buffer, value in buffers:
                    buffer.copy_(value)
        flat = self._zeros()
        for p, gradient in zip(held, gradients, strict=True):
            if gradient is not None:
                flat[self._owner[p]][self._offset[p]] = gradient.detach().flatten().float() / scale
        return flat


def _flat(p: Tensor) -> Tensor:
    return (torch.zeros_like(p) if p.grad is None else p.grad.detach().clone()).flatten().float()
