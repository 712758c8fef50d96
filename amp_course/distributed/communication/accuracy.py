"""Measure what a 16-bit all-reduce loses: real gradients, up to 1,024 simulated ranks,
compared with their mean in fp64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from amp_course.distributed.communication.sums import Divide, Order, reduce_mean
from amp_course.kit.data import digits


@dataclass(frozen=True)
class ReductionError:
    """How far a 16-bit mean over ranks is from the exact one.

    scale:            the loss scale that the gradients were multiplied by
    share_lost:       of the elements whose exact mean is not 0, those that became 0: too small, or
                      rounded until they cancelled
    share_overflowed: of all elements, those that became inf or NaN
    relative_error:   ‖got − exact‖ / ‖exact‖ over the finite elements; NaN if there are none, or if
                      their means are all 0
    """

    ranks: int
    dtype: torch.dtype
    order: Order
    accumulate: torch.dtype
    scale: float
    share_lost: float
    share_overflowed: float
    relative_error: float


def measure_reduction(
    shards: Tensor,
    dtype: torch.dtype,
    order: Order = "ring",
    divide: Divide = "before",
    accumulate: torch.dtype | None = None,
    scale: float = 1.0,
) -> ReductionError:
    """Multiply gradients (ranks, elements) by a loss scale, average them as `reduce_mean` does, and
    compare with fp64.

    Example: measure_reduction(torch.ones(4, 1), torch.float16, scale=2.0**15,
             divide="after").share_overflowed → 1.0
    """
    scaled = shards * scale
    got = reduce_mean(scaled, dtype, order, divide, accumulate).double()
    exact = scaled.double().mean(dim=0)
    finite, nonzero = got.isfinite(), exact != 0
    norm = exact[finite].norm()
    return ReductionError(
        len(shards),
        dtype,
        order,
        accumulate or dtype,
        scale,
        share_lost=((got == 0) & nonzero).sum().item() / max(1, int(nonzero.sum())),
        share_overflowed=(~finite).double().mean().item(),
        relative_error=((got - exact)[finite].norm() / norm).item() if norm else math.nan,
    )


def measure_ranks(
    shards: Tensor,
    dtype: torch.dtype,
    order: Order = "ring",
    divide: Divide = "before",
    accumulate: torch.dtype | None = None,
    scale: float = 1.0,
) -> tuple[ReductionError, ...]:
    """Measure the reduction over the first 2, 4, 8, … rows of the gradients."""
    ranks = (2**k for k in range(1, len(shards).bit_length()))
    return tuple(
        measure_reduction(shards[:n], dtype, order, divide, accumulate, scale) for n in ranks
    )


def measure_scales(
    shards: Tensor, dtype: torch.dtype, divide: Divide = "before"
) -> tuple[ReductionError, ...]:
    """Measure a ring reduction over all rows of the gradients, at loss scales of 2^-24, 2^-22, …
    2^24.
    """
    return tuple(
        measure_reduction(shards, dtype, divide=divide, scale=2.0**exponent)
        for exponent in range(-24, 25, 2)
    )


def digit_gradients(ranks: int = 1024, steps: int = 200) -> Tensor:
    """Train a small network on the digits, then return the gradient that each rank computes:
    (ranks, 2410), fp32.

    Each rank has one of the 1,437 training pictures. The network is 64 → 32 → 10 with a ReLU
    between, after `steps` steps of Adam on all training pictures.
    """
    data = digits()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(data.train_x), data.train_y).backward()
        optimizer.step()

    def loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(torch.func.functional_call(model, parameters, (x[None],)), y[None])

    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    per_picture = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))
    gradients = per_picture(parameters, data.train_x[:ranks], data.train_y[:ranks])
    return torch.cat([gradient.flatten(1) for gradient in gradients.values()], dim=1)
