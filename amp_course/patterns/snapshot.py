"""Remember a whole training and put it back: weights, gradients, optimizers, scaler, schedulers, random states.

What a training step keeps elsewhere, such as a counter in a closure, cannot be seen and is not put back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from amp_course.kit.random_state import random_state, set_random_state
from amp_course.patterns.nested import copied

_ABSENT = object()


class Snapshot:
    """The state of a training at one moment; `restore()` brings it back, in place, as often as you like."""

    def __init__(
        self,
        models: Sequence[nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        scaler: torch.amp.GradScaler | None = None,
        schedulers: Sequence[Any] = (),
    ) -> None:
        self._modules = [(module, module.training) for model in models for module in model.modules()]
        held = [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]
        owned = [p for model in models for p in model.parameters()]
        # Gradients are kept, not copied: whoever takes a snapshot sets `p.grad` to None before a step runs.
        self._parameters = [(p, p.detach().clone(), p.requires_grad, p.grad) for p in dict.fromkeys([*held, *owned])]
        self._buffers = [(b, b.detach().clone()) for model in models for b in model.buffers()]
        self._optimizers = [(optimizer, _optimizer_state(optimizer)) for optimizer in optimizers]
        self._scaler = None if scaler is None else (scaler, {k: copied(v) for k, v in vars(scaler).items()})
        self._schedulers = [(one, copied(one.state_dict())) for one in schedulers]
        self._random = random_state()

    @torch.no_grad()
    def restore(self) -> None:
        """Put everything back."""
        for module, training in self._modules:
            module.training = training
        for p, value, wanted, grad in self._parameters:
            p.copy_(value)
            p.requires_grad_(wanted)
            p.grad = grad
        for buffer, value in self._buffers:
            buffer.copy_(value)
        for one, state in self._schedulers:
            one.load_state_dict(copied(state))
        for optimizer, (groups, states, called) in self._optimizers:
            _restore_optimizer(optimizer, groups, states, called)
        if self._scaler is not None:
            scaler, attributes = self._scaler
            vars(scaler).clear()
            vars(scaler).update({k: copied(v) for k, v in attributes.items()})
        set_random_state(self._random)


def _optimizer_state(optimizer: torch.optim.Optimizer) -> tuple[list[dict[str, Any]], dict[Any, Any], Any]:
    groups = [{k: v if k == "params" else copied(v) for k, v in group.items()} for group in optimizer.param_groups]
    states = {p: {k: copied(v) for k, v in state.items()} for p, state in optimizer.state.items()}
    return groups, states, getattr(optimizer, "_opt_called", _ABSENT)


def _restore_optimizer(
    optimizer: torch.optim.Optimizer, groups: list[dict[str, Any]], states: dict[Any, Any], called: Any
) -> None:
    for group, was in zip(optimizer.param_groups, groups, strict=True):
        for key, value in was.items():
            if isinstance(value, Tensor) and isinstance(group.get(key), Tensor):
                group[key].copy_(value)
            elif key != "params":
                group[key] = copied(value)
    for p in [p for p in optimizer.state if p not in states]:
        del optimizer.state[p]
    for p, state in states.items():
        now = optimizer.state[p]
        for key, value in state.items():
            if isinstance(value, Tensor) and isinstance(now.get(key), Tensor):
                now[key].copy_(value)
            else:
                now[key] = copied(value)
    if called is not _ABSENT:
        optimizer._opt_called = called  # type: ignore[attr-defined]
    elif hasattr(optimizer, "_opt_called"):
        del optimizer._opt_called
