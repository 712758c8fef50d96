"""The chapter's opening: what AMP makes of three linear layers, narrow and wide, on a card that
you need not have.

A training step of `SimpleNet` is counted on fake tensors, forward and backward, and each op is
given the time that the card's roofline allows. The optimizer, which is the same with and without
AMP, is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from amp_course.kit.models import SimpleNet
from amp_course.speed.counting import OpCall, count_ops, fake_tensors, forward_backward
from amp_course.speed.roofline import FORMATS, Bound, Roofline

BATCH = 512
WIDTHS = (128, 256, 512, 1024, 2048, 4096, 8192)
_STEP = 8  # widths are multiples of it, as tensor cores like them


@dataclass(frozen=True)
class Cost:
    """What a step costs: its kernels, and its seconds by what bounds each of its ops."""

    kernels: int
    seconds_by: Mapping[Bound, float]

    @property
    def seconds(self) -> float:
        return sum(self.seconds_by.values())


@dataclass(frozen=True)
class Pair:
    """A step at one width, without AMP and with it."""

    width: int
    fp32: Cost
    amp: Cost

    @property
    def speedup(self) -> float:
        """How many times faster AMP is; below 1 it is slower."""
        return self.fp32.seconds / self.amp.seconds


@dataclass(frozen=True)
class Opening:
    """Steps at several widths.

    crossing: the smallest width, a multiple of 8, at which AMP is faster; None if it never is
    """

    name: str
    fmt: str
    pairs: tuple[Pair, ...]
    crossing: int | None


def step_calls(width: int, dtype: torch.dtype | None, batch: int = BATCH) -> tuple[OpCall, ...]:
    """Count the ops of forward and backward under AMP in `dtype`, or without it (None).

    Example: len(step_calls(256, None)), len(step_calls(256, torch.bfloat16)) → (18, 33)
    """
    with torch.inference_mode(False), torch.enable_grad(), fake_tensors():
        model, x, target = SimpleNet(width), torch.randn(batch, width), torch.randn(batch, width)
        with count_ops() as counter:
            forward_backward(model, F.mse_loss, (x,), target, torch.device("cpu"), dtype)
    return tuple(counter.calls)


def three_layers(
    roofline: Roofline,
    dtype: torch.dtype = torch.bfloat16,
    widths: Sequence[int] = WIDTHS,
) -> Opening:
    """Price a step of three linear layers at each width, with and without AMP in `dtype`.

    Raises KeyError for a dtype that the roofline has no peak for, ValueError for a width below 1.
    Example: three_layers(find_card("A100 SXM 40 GB").roofline()).pairs[1].speedup → 0.55, at width
             256
    """
    pairs = [_pair(roofline, dtype, width) for width in sorted(widths)]
    return Opening(roofline.name, FORMATS[dtype], tuple(pairs), _crossing(roofline, dtype, pairs))


def _pair(roofline: Roofline, dtype: torch.dtype, width: int) -> Pair:
    costs = []
    for low in (None, dtype):
        calls = step_calls(width, low)
        costs.append(Cost(len(calls), roofline.by_bound(calls)))
    return Pair(width, *costs)


def _crossing(roofline: Roofline, dtype: torch.dtype, pairs: Sequence[Pair]) -> int | None:
    """Search by halving between the last width at which AMP is slower and the next one."""
    slower = [pair.width for pair in pairs if pair.speedup <= 1]
    faster = [pair.width for pair in pairs if pair.width > max(slower, default=0)]
    if not faster:
        return None
    low, high = max(slower, default=0) // _STEP, -(-min(faster) // _STEP)
    while high - low > 1:
        middle = (low + high) // 2
        if _pair(roofline, dtype, middle * _STEP).speedup > 1:
            high = middle
        else:
            low = middle
    return high * _STEP
