"""Compare two ranks that have half a batch each with one process that has the whole batch.

DDP divides each rank's gradient by the number of ranks and adds them up. One process that takes the
two halves in turn, adds up their gradients and halves the sum has the same terms in the same order,
and halving is exact: the weights are equal to the last bit. One process that takes the whole batch
at once adds in another order, and rounds to 16 bits once, where two ranks round twice. The net is
softmax regression on the digits, for which that difference can be bounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from amp_course.distributed.ranks import values_on_ranks
from amp_course.kit.data import digits

_LEARNING_RATE, _ROWS = 0.5, 128  # rows of both ranks together


@dataclass(frozen=True)
class Equality:
    """How two ranks compare with one process.

    same_bits:  whether the weights after all steps equal those of one process that takes the halves
                in turn
    difference: of the first step's gradient from that of one process with the whole batch, at the
                element that comes closest to its bound
    bound:      the `gradient_bound` of that element
    largest:    the largest magnitude in the gradient
    """

    same_bits: bool
    difference: float
    bound: float
    largest: float


def compare(dtype: torch.dtype, *, steps: int = 20, seed: int = 0) -> Equality:
    """Train softmax regression on two ranks, with 64 rows on each, and in one process; in fp32
    without autocast.

    Raises CourseError if a rank fails.
    """
    found: Equality = values_on_ranks(_compare_on_rank, dtype, steps, seed)[0]
    return found


def gradient_bound(
    inputs: Tensor,
    targets: Tensor,
    layer: nn.Linear,
    halves: Sequence[Tensor],
    whole: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    """Bound, element by element, the difference between the mean of two halves' weight gradients
    and the gradient of the whole batch.

    inputs (rows, features), targets (rows), gradients (classes, features) → (classes, features)

    Let u be the unit roundoff of `dtype` and v that of fp32. The gradient is the mean over the rows
    of errors times inputs, where a row's errors are its softmax minus the target. To first order,
    three things differ:
    - the sums of the whole and of each half are rounded to `dtype` at the end: u |gradient|;
    - sums over the rows may have another order, in fp32: 2 · v · rows times the mean of |errors| ·
      |inputs|;
    - so may the sum in a logit, which is then rounded: by δ = 2 (u |logit| + v · features ·
      |inputs| · |weights|). An error p moves by at most 2 δ p (1 − p), and rounding it to `dtype`
      in the backward pass may add 2 u p.
    """
    u, v = torch.finfo(dtype).eps / 2, torch.finfo(torch.float32).eps / 2
    rows, features = inputs.shape
    weight, sizes = layer.weight.detach(), inputs.abs()
    logits = inputs @ weight.T + layer.bias.detach()
    errors = (logits.softmax(1) - nn.functional.one_hot(targets, len(weight))).abs()
    moved = 2 * (u * logits.abs() + v * features * (sizes @ weight.abs().T)).amax(1, keepdim=True)
    rounded = u * (whole.abs() + (halves[0].abs() + halves[1].abs()) / 2)
    reordered = 2 * v * (errors.T @ sizes)
    recomputed = (2 * moved * errors * (1 - errors) + 2 * u * errors).T @ sizes / rows
    return rounded + reordered + recomputed


def _compare_on_rank(dtype: torch.dtype, steps: int, seed: int) -> Equality:
    rank, data = dist.get_rank(), digits()
    generator = torch.Generator().manual_seed(seed)
    batches = []
    for _ in range(steps):
        rows = torch.randperm(len(data.train_y), generator=generator)[:_ROWS]
        batches.append((data.train_x[rows].flatten(1), data.train_y[rows]))
    split, alone = _net(seed), _net(seed)
    _train(DistributedDataParallel(split), batches, [rank], dtype)
    _train(alone, batches, [0, 1], dtype)
    pairs = zip(split.parameters(), alone.parameters(), strict=True)
    same_bits = all(torch.equal(a, b) for a, b in pairs)

    x, y = batches[0]
    whole, *halves = (_gradient(_net(seed), *part, dtype) for part in ((x, y), *_halves(x, y)))
    gradient = _gradient(DistributedDataParallel(_net(seed)), *_halves(x, y)[rank], dtype)
    bound = gradient_bound(x, y, _net(seed), halves, whole, dtype)
    difference = (gradient - whole).abs()
    worst = int((difference / bound.clamp(min=1e-30)).argmax())
    return Equality(
        same_bits,
        difference.flatten()[worst].item(),
        bound.flatten()[worst].item(),
        whole.abs().max().item(),
    )


def _net(seed: int) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(64, 10)


def _halves(x: Tensor, y: Tensor) -> list[tuple[Tensor, Tensor]]:
    return list(zip(x.chunk(2), y.chunk(2), strict=True))


def _scaler(dtype: torch.dtype) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=2.0**10, enabled=dtype == torch.float16)


def _backward(
    model: nn.Module, scaler: torch.amp.GradScaler, x: Tensor, y: Tensor, dtype: torch.dtype
) -> None:
    fp32 = dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16 if fp32 else dtype, enabled=not fp32):
        loss = cross_entropy(model(x).float(), y)
    scaler.scale(loss).backward()


def _gradient(model: nn.Module, x: Tensor, y: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the gradient of a model's first weights, (classes, features)."""
    scaler = _scaler(dtype)
    _backward(model, scaler, x, y, dtype)
    gradient = next(model.parameters()).grad
    assert gradient is not None
    return gradient / scaler.get_scale()


def _train(
    model: nn.Module,
    batches: Sequence[tuple[Tensor, Tensor]],
    halves: Sequence[int],
    dtype: torch.dtype,
) -> None:
    """Train on these halves of each batch, one after the other; average their gradients."""
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=_LEARNING_RATE), _scaler(dtype)
    for x, y in batches:
        for half in halves:
            _backward(model, scaler, *_halves(x, y)[half], dtype)
        for weight in model.parameters():
            assert weight.grad is not None
            weight.grad /= len(halves)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
