"""Compute the gradient of the plain loss: in fp32, or under autocast for what rounding does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from amp_course.watching.calling import arguments_for, cloned
from amp_course.watching.gradients import Gradient
from amp_course.watching.records import Training

_HOOKS = ("_backward_hooks", "_backward_pre_hooks")


class BadLoss(Exception):
    """What was passed as the fp32 loss is none; the message continues "the fp32 `loss` …"."""


def reference(
    training: Training, batch: Any, dtype: torch.dtype | None = None, scale: float = 1.0
) -> list[Gradient]:
    """Return the loss's gradient for a micro-batch, for each slot, frozen parameters included.

    Where each optimizer has a loss of its own, its slot holds the gradient of that loss. The caller
    puts back what the loss changes, such as batch norm's statistics.

    dtype: that of autocast; None for fp32
    scale: the loss is multiplied by it before `backward()`, and the gradient divided by it after
    Raises whatever the loss raises, and BadLoss for something that is no loss.
    """
    if isinstance(training.loss, Sequence):
        losses, last = enumerate(training.loss), training.slots[-1]
        found = [_gradients(training, loss, batch, dtype, scale)[n] for n, loss in losses]
        return [*found, last.gradient([None] * len(last.parameters))]
    assert training.loss is not None
    return _gradients(training, training.loss, batch, dtype, scale)


def _gradients(
    training: Training,
    loss: Callable[..., Any],
    batch: Any,
    dtype: torch.dtype | None,
    scale: float,
) -> list[Gradient]:
    leaves = [p for p in training.parameters if p.is_leaf and p.is_floating_point()]
    flags, models = [p.requires_grad for p in leaves], training.models
    first = models[0] if len(models) == 1 else list(models)
    args, kwargs = arguments_for(loss, cloned(batch), (first,))
    for module, mode in training.modes.items():
        module.training = mode
    owners = [*leaves, *training.current_modes()]
    hooks = [found for one in owners for name in _HOOKS if (found := getattr(one, name, None))]
    before = [dict(one) for one in hooks]
    # A step may freeze and unfreeze weights: the comparison decides which gradients count.
    for p in leaves:
        p.requires_grad_(True)
    for one in hooks:  # what they do to the step's gradient has to show in the comparison
        one.clear()
    try:
        on, kind = dtype is not None, training.device_type
        region = torch.autocast(kind, dtype=dtype, enabled=on, cache_enabled=False)
        with torch.enable_grad(), region:
            total = _total(loss(*args, **kwargs))
        found = torch.autograd.grad(total * scale, leaves, allow_unused=True)
    finally:
        for p, flag in zip(leaves, flags, strict=True):
            p.requires_grad_(flag)
        for one, were in zip(hooks, before, strict=True):
            one.update(were)
    gradient = {id(p): None if g is None else g / scale for p, g in zip(leaves, found, strict=True)}
    slots = training.slots
    return [one.gradient([gradient.get(id(p)) for p in one.parameters]) for one in slots]


def _total(loss: Any) -> Tensor:
    parts = list(loss) if isinstance(loss, (tuple, list)) else [loss]
    for one in parts:
        if not isinstance(one, Tensor):
            kind = type(one).__name__
            raise BadLoss(f"returned a {kind}, and a loss is a tensor with one number")
        if one.numel() != 1:
            shape = f"returned a tensor of shape {tuple(one.shape)}"
            raise BadLoss(f"{shape}, and a loss is one number: take the mean")
    total: Tensor = torch.stack([one.float().reshape(()) for one in parts]).sum()
    if not total.requires_grad:
        raise BadLoss(
            "does not depend on the weights: is something detached, or not differentiable?"
        )
    if not total.isfinite():
        raise BadLoss(f"is {total.item():g}, in fp32 and before any step")
    return total
