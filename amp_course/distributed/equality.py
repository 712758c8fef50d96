"""Compare two ranks with half a batch each, and one process with the whole batch: equal to the last
bit, or how far apart?

DDP divides each rank's gradient by the number of ranks and adds up. One process that takes the two
halves in turn, adds up their gradients and halves the sum has the same terms in the same order, and
halving is exact: the weights are equal to the last bit. One process that takes the whole batch at
once adds up in another order, and rounds to 16 bits once, where two ranks round twice. The net is
softmax regression on the digits, for which that difference can be bounded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from amp_course.distributed.ranks import Ranks, warm_ranks
from amp_course.kit.data import digits
from amp_course.kit.errors import CourseError

_LEARNING_RATE = 0.5


@dataclass(frozen=True)
class Equality:
    """How two ranks compare with one process, for one dtype of autocast.

    same_bits:  whether the weights after all steps equal those of one process that takes the halves
                in turn
    difference: the largest difference of the first step's gradient from that of one process with
                the whole batch
    bound:      what it can be at most, where that difference is; `gradient_bound`
    largest:    the largest element of the gradient
    """

    dtype: torch.dtype
    same_bits: bool
    difference: float
    bound: float
    largest: float


def compare(
    dtype: torch.dtype,
    *,
    steps: int = 20,
    rows: int = 64,
    seed: int = 0,
    ranks: Ranks | None = None,
) -> Equality:
    """Train softmax regression on two ranks, with `rows` rows on each, and in one process. fp32
    means without autocast.

    Raises CourseError if a rank fails.
    """
    reports = (ranks or warm_ranks()).run(_compare_on_rank, dtype, steps, rows, seed, seconds=60.0)
    for rank, report in enumerate(reports):
        if report.failure is not None:
            raise CourseError(f"the training on rank {rank} failed: {report.failure.told}")
    found: Equality = reports[0].value
    return found


def gradient_bound(
    inputs: Tensor,
    targets: Tensor,
    layer: nn.Linear,
    halves: tuple[Tensor, Tensor],
    whole: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    """Bound the difference between the mean of two halves' weight gradients and the gradient of the
    whole batch, by element.

    inputs (rows, features), targets (rows), gradients (classes, features) → (classes, features)

    Let u be the unit roundoff of `dtype` and v that of fp32. The gradient is the mean over the rows
    of errors times inputs, where a row's errors are its softmax minus the target. To first order,
    three things differ:
    - sums are rounded to `dtype` at the end, the whole and each half: u |gradient|;
    - sums over the rows may have another order, in fp32: 2 · v · rows times the mean of |errors| ·
      |inputs|;
    - so may a logit's, which is then rounded: by δ = 2 (u |logit| + v · features · |inputs| ·
      |weights|). An error p moves by at most 2 δ p (1 − p), and is rounded to `dtype` on its way
      back, which may add 2 u p.
    """
    u, v = torch.finfo(dtype).eps / 2, torch.finfo(torch.float32).eps / 2
    rows, features = inputs.shape
    weight, sizes = layer.weight.detach(), inputs.abs()
    logits = inputs @ weight.T + layer.bias.detach()
    errors = (logits.softmax(1) - nn.functional.one_hot(targets, len(weight))).abs()
    moved = 2 * (u * logits.abs() + v * features * (sizes @ weight.abs().T)).amax(1, keepdim=True)
    rounded = u * (whole.abs() + (halves[0].abs() + halves[1].abs()) / 2)
    reordered = 2 * v * (errors.T @ sizes)
    return (
        rounded + reordered + (2 * moved * errors * (1 - errors) + 2 * u * errors).T @ sizes / rows
    )


def _compare_on_rank(dtype: torch.dtype, steps: int, rows: int, seed: int) -> Equality:
    rank, data = dist.get_rank(), digits()
    generator = torch.Generator().manual_seed(seed)
    chosen = [
        torch.randperm(len(data.train_y), generator=generator)[: 2 * rows] for _ in range(steps)
    ]
    batches = [(data.train_x[some].flatten(1), data.train_y[some]) for some in chosen]

    def train(
        model: nn.Module, take: Callable[[Any, Tensor, Tensor], list[Tensor]]
    ) -> tuple[nn.Module, Tensor, list[Tensor]]:
        optimizer = torch.optim.SGD(model.parameters(), lr=_LEARNING_RATE)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, enabled=dtype == torch.float16)
        first: Tensor | None = None
        parts: list[Tensor] = []
        for x, y in batches:
            found = take(scaler, x, y)
            scaler.unscale_(optimizer)
            gradient = next(model.parameters()).grad
            assert gradient is not None
            if first is None:
                first, parts = gradient.clone(), [part / scaler.get_scale() for part in found]
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        assert first is not None
        return model, first, parts

    def backward(model: nn.Module, scaler: Any, x: Tensor, y: Tensor) -> None:
        with torch.autocast(
            "cpu",
            dtype=torch.bfloat16 if dtype == torch.float32 else dtype,
            enabled=dtype != torch.float32,
        ):
            loss = cross_entropy(model(x).float(), y)
        scaler.scale(loss).backward()

    def on_ranks(scaler: Any, x: Tensor, y: Tensor) -> list[Tensor]:
        backward(wrapped, scaler, x.chunk(2)[rank], y.chunk(2)[rank])
        return []

    def interleaved(scaler: Any, x: Tensor, y: Tensor) -> list[Tensor]:
        gradients = []
        for half in (0, 1):
            backward(alone, scaler, x.chunk(2)[half], y.chunk(2)[half])
            assert alone.weight.grad is not None
            gradients.append(alone.weight.grad.clone())
        for weight in alone.parameters():
            assert weight.grad is not None
            weight.grad /= 2
        return [gradients[0], gradients[1] - gradients[0]]

    nets = [nn.Linear(64, 10) for _ in range(3)]
    for net in nets:
        torch.manual_seed(seed)
        net.reset_parameters()
    split, alone, large = nets
    wrapped = DistributedDataParallel(split)
    _, gradient, _ = train(wrapped, on_ranks)
    _, _, halves = train(alone, interleaved)
    same = all(
        torch.equal(one, other)
        for one, other in zip(split.parameters(), alone.parameters(), strict=True)
    )

    x, y = batches[0]
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, enabled=dtype == torch.float16)
    backward(large, scaler, x, y)
    assert large.weight.grad is not None
    whole = large.weight.grad / scaler.get_scale()
    bound = gradient_bound(x, y, large, (halves[0], halves[1]), whole, dtype)
    difference = (gradient - whole).abs()
    worst = int((difference / bound.clamp(min=1e-30)).argmax())
    return Equality(
        dtype,
        same,
        difference.flatten()[worst].item(),
        bound.flatten()[worst].item(),
        whole.abs().max().item(),
    )
