"""The weights of an optimizer: which they are, and whether they moved."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def weights_of(optimizer: Any) -> list[Tensor]:
    """Return the parameters of all groups of an optimizer."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def highest_rate(optimizer: Any) -> float:
    """Return the highest learning rate of an optimizer's groups."""
    return max((float(group.get("lr", 1.0)) for group in optimizer.param_groups), default=1.0)


def have_moved(parameters: Sequence[Tensor], before: Sequence[Tensor]) -> bool:
    """Return True if a weight differs from before; NaN equals NaN."""
    return any(
        not torch.equal(p.detach(), was) and not torch.equal(_without_nan(p), _without_nan(was))
        for p, was in zip(parameters, before, strict=True)
    )


def _without_nan(tensor: Tensor) -> Tensor:
    return tensor.detach().nan_to_num() if tensor.is_floating_point() else tensor


def share_left(begin: Sequence[Tensor], stepped: Sequence[Tensor], end: Sequence[Tensor]) -> float:
    """Return how much of a step is left in the weights at the end: 1 if nothing else moved them."""
    made = left = 0.0
    for was, after, now in zip(begin, stepped, end, strict=True):
        if was.shape == now.shape and was.is_floating_point():
            step = (after - was).flatten().double()
            made += float(step @ step)
            left += float(step @ (now.detach() - was).flatten().double())
    return left / made if made and math.isfinite(left / made) else 1.0
