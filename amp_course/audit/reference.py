"""Compute the gradient of the reader's plain loss: in fp32, or under autocast to see what rounding alone does to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from amp_course.watching.calling import arguments_for, cloned
from amp_course.watching.records import Gradient, Training

_HOOKS = ("_backward_hooks", "_backward_pre_hooks")


class BadLoss(Exception):
    """What the reader passed as the fp32 loss is none: said as the rest of a sentence, "the fp32 `loss` …"."""


def reference(training: Training, batch: Any, dtype: torch.dtype | None = None, scale: float = 1.0) -> list[Gradient]:
    """Return the gradient of the loss for one micro-batch, for each slot, frozen parameters included.

    What the loss changes, batch norm's statistics and random states among it, is for the caller to put back.

    Where each optimizer has a loss of its own, the slot of each holds that of its loss.
    dtype: that of autocast; None for fp32
    scale: the loss is multiplied by it before, and the gradient divided by it after backward

    Raises whatever the loss raises, and BadLoss for something that is no loss.
    """
    if isinstance(training.loss, Sequence):
        found = [_of_one(training, loss, batch, dtype, scale)[n] for n, loss in enumerate(training.loss)]
        return [*found, training.slots[-1].gradient([None] * len(training.slots[-1].parameters))]
    assert training.loss is not None
    return _of_one(training, training.loss, batch, dtype, scale)


def _of_one(
    training: Training, loss: Callable[..., Any], batch: Any, dtype: torch.dtype | None, scale: float
) -> list[Gradient]:
    held = [p for slot in training.slots for p in slot.parameters if p.is_leaf and p.is_floating_point()]
    flags = [p.requires_grad for p in held]
    models = training.models
    args, kwargs = arguments_for(loss, cloned(batch), (models[0] if len(models) == 1 else list(models),))
    for module, mode in training.modes.items():
        module.training = mode
    owners = [*held, *(module for model in models for module in model.modules())]
    hooks = [found for one in owners for name in _HOOKS if (found := getattr(one, name, None))]
    kept = [dict(one) for one in hooks]
    for p in held:  # a step may freeze and unfreeze its weights: which gradients count is for the comparison to say
        p.requires_grad_(True)
    for one in hooks:  # what they do to a gradient is the step's doing, and to be seen
        one.clear()
    try:
        region = torch.autocast(training.device_type, dtype=dtype, enabled=dtype is not None, cache_enabled=False)
        with torch.enable_grad(), region:
            total = _total(loss(*args, **kwargs))
        found = torch.autograd.grad(total * scale, held, allow_unused=True)
    finally:
        for p, flag in zip(held, flags, strict=True):
            p.requires_grad_(flag)
        for one, were in zip(hooks, kept, strict=True):
            one.update(were)
    gradient = {id(p): None if g is None else g / scale for p, g in zip(held, found, strict=True)}
    return [slot.gradient([gradient.get(id(p)) for p in slot.parameters]) for slot in training.slots]


def _total(loss: Any) -> Tensor:
    parts = list(loss) if isinstance(loss, (tuple, list)) else [loss]
    for one in parts:
        if not isinstance(one, Tensor):
            raise BadLoss(f"returned a {type(one).__name__}, and a loss is a tensor with one number")
        if one.numel() != 1:
            raise BadLoss(f"returned a tensor of shape {tuple(one.shape)}, and a loss is one number: take the mean")
    total: Tensor = torch.stack([one.float().reshape(()) for one in parts]).sum()
    if not total.requires_grad:
        raise BadLoss("does not depend on the weights: is something detached, or not differentiable?")
    if not total.isfinite():
        raise BadLoss(f"is {total.item():g}, in fp32 and before any step")
    return total
