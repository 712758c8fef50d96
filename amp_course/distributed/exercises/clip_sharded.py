"""Exercise 4 of chapter 10: clip gradients by their norm over all ranks."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from amp_course.checking import Card, Case, Exercise, Mistake, families, read_number
from amp_course.distributed.ranks import call_on_rank, cases_on_ranks, collectives_so_far

card = Card(
    chapter="distributed",
    name="clip_sharded",
    number=4,
    title="Clip a norm in pieces",
    difficulty=3,
    importance=4,
    minutes=12,
    lines=7,
    task="Write `clip_sharded(grads, max_norm)`: `grads` is a list of tensors, this rank's part "
    "of all gradients (the list may be empty). Return the 2-norm of the gradients of all ranks "
    "together, a number. If it is above `max_norm`, multiply each tensor in place by `max_norm` / "
    "norm; below, change nothing (the norm may be 0). The gradients may be fp16, whose squares "
    "overflow: compute the norm in fp32, and let it travel in fp32.",
    hints=(
        "The square of the whole norm is the sum of all squares. Which number does each rank have "
        "to share?",
        "Each rank adds up the squares of its own elements, in fp32. `dist.all_reduce` adds these "
        "sums, and the square root comes last.",
        "`total = torch.zeros(())`, for each tensor `total += g.float().square().sum()`, then "
        "`dist.all_reduce(total)`; `norm = total.sqrt().item()`.",
    ),
    why="A rank that clips by its own norm scales its shard by its own factor. That changes the "
    "direction of the step, which clipping must not do.",
    alternative="with DTensor gradients (FSDP2), `nn.utils.clip_grad_norm_` does this for you, "
    "and returns a DTensor whose `full_tensor()` is the norm.",
)


def right(grads: list[Tensor], max_norm: float) -> float:
    total = torch.zeros(())
    for grad in grads:
        total += grad.float().square().sum()
    dist.all_reduce(total)
    norm = total.sqrt().item()
    if norm > max_norm:
        for grad in grads:
            grad.mul_(max_norm / norm)
    return norm


def _inputs(rank: int, seed: int) -> list[tuple[str, list[Tensor], float]]:
    """Return the case in words, this rank's gradients and max_norm, for all cases."""
    generator = torch.Generator().manual_seed(2 * seed + rank)

    def drawn(*shape: int, size: float = 1.0, dtype: torch.dtype = torch.float32) -> Tensor:
        return (torch.randn(shape, generator=generator).clamp(-3, 3) * size).to(dtype)

    half, parts = torch.float16, [torch.tensor([[1.5, -2.0 * rank], [0.0, 2.0]])]
    own = [drawn(5, 3), drawn(4)]
    return [
        ("for norms of 3 and 4 on the two ranks", [torch.tensor([3.0 + rank])], 1.0),
        ("with a norm below max_norm", [drawn(2, 3, size=0.1), drawn(3, size=0.1)], 4.0),
        ("with a norm above max_norm", [drawn(4, 2 + rank), drawn(6, size=2.0)], 0.5),
        ("with a norm above max_norm only over both ranks", parts, 3.0),
        (
            "with fp16 gradients",
            [drawn(40, size=4e2, dtype=half), drawn(8, size=9e2, dtype=half)],
            10.0,
        ),
        (
            "with fp16 gradients whose norm lies beyond fp16",
            [torch.full((4,), 6e4, dtype=half)],
            10.0,
        ),
        ("with small fp16 gradients", [drawn(16, size=2.0**-9, dtype=half)], 2.0**-9),
        # Here, a norm is 0 on some rank.
        ("with an empty list on rank 0", own if rank else [], 1.0),
        ("with an empty list on rank 1", [] if rank else own, 1.0),
        ("with gradients of 0", [torch.zeros(3)], 1.0),
    ]


def on_rank(answer: Callable[..., Any], seed: int, which: slice) -> list[Case]:
    """Clip this rank's part in some of the cases."""
    found: list[Case] = []
    for case, grads, max_norm in _inputs(dist.get_rank(), seed)[which]:
        given = [*grads]
        own = sum(grad.double().square().sum().item() for grad in grads) ** 0.5
        before = len(collectives_so_far())
        norm = read_number(call_on_rank(answer, case, grads, max_norm), case)
        sent = {one.dtype for one in collectives_so_far()[before:]}
        replaced = not found and [*map(id, grads[:1])] != [*map(id, given[:1])]
        evidence = {
            "the first list holds another tensor": replaced,
            "sent": {dtype for dtype in sent if dtype.startswith(("float", "bfloat"))},
        }
        outputs = {"the norm": norm, "the clipped gradient": [grad.clone() for grad in given]}
        found.append(Case(case, outputs, {"own": f"{own:.4g}"}, evidence))
    return found


def cases(answer: Callable[..., Any], draw: random.Random) -> Iterator[Case]:
    """Norms below and above the limit, fp16 gradients, a rank with nothing, zeros."""
    seed = draw.randrange(10_000)
    for which in (slice(-3), slice(-3, None)):  # many wrong answers divide by 0 in the last
        yield from cases_on_ranks(on_rank, answer, seed, which)


ZERO, SQUARES = "total = torch.zeros(())", "total += grad.float().square().sum()"
REDUCE, NORM = "dist.all_reduce(total)", "norm = total.sqrt().item()"
IF, CLIP = "if norm > max_norm:", "grad.mul_(max_norm / norm)"
KEEP_OWN = {REDUCE: f"own = total.sqrt().item()\n{REDUCE}"}
OWN_DTYPE = (
    "the squares are computed in the gradients' dtype: in fp16, 256² is inf and the square of "
    "2^-13 is 0. Call `.float()` first"
)
_, SCALES_UP = families.ALWAYS_TO_MAX_NORM
OWN_NORM = (
    "the norm returned is right, but this rank clips by its own norm, {own}: use the same factor "
    "on all ranks"
)
EACH = (
    "each tensor is multiplied by a factor from its own norm, which changes the direction of the "
    "step: use one factor for all"
)
ADD_SQUARES = "add up squares instead, and take the root at the end"

mistakes = [
    Mistake(
        "the local norm",
        "this is the norm of only this rank's gradients, {own}: add up the squares over all "
        "ranks with `dist.all_reduce`, before the root",
        edits={REDUCE: "pass"},
        violates="the gradients of all ranks together",
    ),
    Mistake(
        "the sum of the norms",
        f"this is the sum of the ranks' norms: {ADD_SQUARES}",
        edits={NORM: "norm = total.item()", REDUCE: "total.sqrt_(); dist.all_reduce(total)"},
    ),
    Mistake(
        "sum of norms",
        f"this is the sum of the tensors' norms: {ADD_SQUARES}",
        edits={SQUARES: "total += grad.float().norm()", NORM: "norm = total.item()"},
    ),
    Mistake(
        *families.REDUCES_TO_RANK_0,
        edits={REDUCE: "dist.reduce(total, dst=0)"},
    ),
    Mistake(
        "the largest norm",
        "this is the larger of the ranks' norms: add up the squares of all ranks",
        edits={REDUCE: "dist.all_reduce(total, op=dist.ReduceOp.MAX)"},
    ),
    Mistake(
        "the mean of the norms",
        f"this is the mean of the ranks' norms: {ADD_SQUARES}",
        edits={
            NORM: "norm = total.item() / dist.get_world_size()",
            REDUCE: "total.sqrt_(); dist.all_reduce(total)",
        },
    ),
    Mistake(
        "the mean of the squares",
        "the sum of squares is divided by the number of ranks, but the ranks hold different "
        "gradients, not copies: only add up the squares",
        edits={NORM: "norm = (total / dist.get_world_size()).sqrt().item()"},
    ),
    Mistake(
        "the square of the norm",
        "this is the sum of the squares: the norm is its square root",
        edits={NORM: "norm = total.item()"},
    ),
    Mistake(
        "squares in fp16",
        OWN_DTYPE,
        edits={SQUARES: "total += grad.square().sum()"},
        violates="compute the norm in fp32",
    ),
    Mistake(
        "squares and their sum in fp16",
        OWN_DTYPE,
        edits={
            ZERO: "total = torch.zeros((), dtype=grads[0].dtype if grads else None)",
            SQUARES: "total += grad.square().sum()",
        },
    ),
    Mistake(
        "the sum travels in fp16",
        "the sum of the squares travels in fp16, where it is inf beyond 65,504: all-reduce it in "
        "fp32",
        edits={REDUCE: f"total = total.half()\n{REDUCE}"},
        violates="let it travel in fp32",
    ),
    Mistake(
        "the norm of each tensor in fp16",
        "the norm of an fp16 tensor is in fp16 too, and inf beyond 65,504: call `.float()` before "
        "you take the norm",
        edits={SQUARES: "total += grad.norm().float().square()"},
    ),
    Mistake(
        *families.ALWAYS_TO_MAX_NORM,
        edits={IF: "if norm > 0:"},
        violates="below, change nothing",
    ),
    Mistake("always to max_norm, even a norm of 0", SCALES_UP, edits={IF: "if True:"}),
    Mistake(
        "always to max_norm, even a norm of 0, in tensors",
        SCALES_UP,
        edits={IF: "if True:", CLIP: "grad.mul_(max_norm / total.sqrt())"},
        violates="the norm may be 0",
    ),
    Mistake(
        "never scales",
        "the norm is right, but the tensors in the list are unchanged: multiply each in place "
        "with `grad.mul_(…)`",
        edits={CLIP: "pass"},
        violates="in place",
    ),
    Mistake(
        "replaces the tensors",
        "you put new tensors into the list, but the parameters' gradients, which were in it, stay "
        "as they are: multiply each in place with `grad.mul_(…)`",
        edits={CLIP: "grads[:] = [one * (max_norm / norm) for one in grads]\nbreak"},
    ),
    Mistake(
        "clips by its own norm",
        OWN_NORM,
        edits={**KEEP_OWN, IF: "if own > max_norm:", CLIP: "grad.mul_(max_norm / own)"},
    ),
    Mistake(
        "clips by its own norm, even 0",
        OWN_NORM,
        edits={
            **KEEP_OWN,
            IF: "factor = min(1.0, max_norm / own)\nif True:",
            CLIP: "grad.mul_(factor)",
        },
    ),
    Mistake(
        "clips by its own norm, if that of all is too large",
        OWN_NORM,
        edits={**KEEP_OWN, CLIP: "grad.mul_(max_norm / own)"},
    ),
    Mistake(
        "decides by its own norm",
        "this rank decides by its own norm, {own}, whether to clip: decide by the norm of all "
        "gradients, or only some ranks clip",
        edits={**KEEP_OWN, IF: "if own > max_norm:"},
    ),
    Mistake(
        "clips each parameter",
        EACH,
        edits={
            IF: "if True:",
            CLIP: "grad.mul_(min(1.0, max_norm / max(grad.float().norm().item(), 1e-30)))",
        },
    ),
    Mistake(
        "clips each parameter, if the norm of all is too large",
        EACH,
        edits={CLIP: "grad.mul_(max_norm / grad.float().norm())"},
    ),
    Mistake(
        "clips values",
        "the elements are clamped one by one, which changes the direction of the step: multiply "
        "all by one factor, `max_norm / norm`",
        edits={CLIP: "grad.clamp_(-max_norm, max_norm)"},
    ),
    Mistake(
        "an empty rank leaves",
        "a rank without gradients does not call the all-reduce, and the other waits there "
        "forever: it has to take part, with a sum of 0",
        edits={ZERO: f"if not grads:\n    return 0.0\n{ZERO}"},
        violates="the list may be empty",
    ),
    Mistake(
        *families.RETURNS_THE_NORM_AFTER_CLIPPING,
        edits={"return norm": "return min(norm, max_norm)"},
    ),
]

clip_sharded = Exercise(card, right, cases, mistakes, tolerance=2e-3)
