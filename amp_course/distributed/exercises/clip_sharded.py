"""Exercise 4 of chapter 10: clip gradients by a norm of which every rank holds a part."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from amp_course.checking import Card, Case, Exercise, Mistake, read_number
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
        "to give to the others?",
        "Each rank adds up the squares of its own elements, in fp32. `dist.all_reduce` adds these "
        "sums, and the square root comes last.",
        "`total = torch.zeros(())`, for each tensor `total += g.float().square().sum()`, then "
        "`dist.all_reduce(total)`; `norm = total.sqrt().item()`.",
    ),
    why="A rank that clips by its own norm scales its shard by its own factor: that changes the "
    "direction of the step, which clipping must not.",
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


def _scene(rank: int, seed: int) -> list[tuple[str, list[Tensor], float]]:
    """Return (case, this rank's gradients, max_norm) for each case."""
    generator = torch.Generator().manual_seed(2 * seed + rank)

    def drawn(*shape: int, dtype: torch.dtype = torch.float32, size: float = 1.0) -> Tensor:
        return (torch.randn(shape, generator=generator).clamp(-3, 3) * size).to(dtype)

    other = [drawn(5, 3), drawn(4)]
    return [
        ("for norms of 3 and 4 on the two ranks", [torch.tensor([3.0 + rank])], 1.0),
        ("with a norm below max_norm", [drawn(2, 3, size=0.1), drawn(3, size=0.1)], 4.0),
        ("with a norm above max_norm", [drawn(4, 2 + rank), drawn(6, size=2.0)], 0.5),
        (
            "with a norm above max_norm only over both ranks",
            [torch.tensor([[1.5, -2.0 * rank], [0.0, 2.0]])],
            3.0,
        ),
        (
            "with fp16 gradients",
            [drawn(40, dtype=torch.float16, size=4e2), drawn(8, dtype=torch.float16, size=9e2)],
            10.0,
        ),
        (
            "with fp16 gradients whose norm lies beyond fp16",
            [torch.full((4,), 6e4, dtype=torch.float16)],
            10.0,
        ),
        ("with small fp16 gradients", [drawn(16, dtype=torch.float16, size=2.0**-9)], 2.0**-9),
        ("with an empty list on rank 0", other if rank else [], 1.0),
        ("with an empty list on rank 1", [] if rank else other, 1.0),
        ("with gradients of 0", [torch.zeros(3)], 1.0),
    ]


def on_rank(answer: Callable[..., Any], seed: int, some_norm_is_0: bool) -> list[Case]:
    """Let the answer clip this rank's part in the cases in which some norm is 0, or in the others;
    return its turns.
    """
    turns: list[Case] = []
    for case, grads, max_norm in _scene(dist.get_rank(), seed)[
        slice(-3, None) if some_norm_is_0 else slice(-3)
    ]:
        given, own = (
            [*grads],
            sum((grad.double().square().sum().item() for grad in grads), 0.0) ** 0.5,
        )
        before = len(collectives_so_far())
        norm = read_number(call_on_rank(answer, case, grads, max_norm), case)
        evidence: dict[str, Any] = {
            "the first list holds another tensor": not turns
            and [*map(id, grads[:1])] != [*map(id, given[:1])],
            "sent": {
                one.dtype
                for one in collectives_so_far()[before:]
                if one.dtype.startswith(("float", "bfloat"))
            },
        }
        facts = {"own": f"{own:.4g}", "max_norm": f"{max_norm:g}"}
        outputs = {"the norm": norm, "the clipped gradient": [grad.clone() for grad in given]}
        turns.append(Case(case, outputs, facts, evidence))
    return turns


def cases(answer: Callable[..., Any], draw: random.Random) -> Iterator[Case]:
    """Norms below and above the limit, fp16 gradients, a rank with nothing, zeros."""
    seed = draw.randrange(10_000)
    for some_norm_is_0 in (
        False,
        True,
    ):  # apart, for many an answer that is wrong before divides by 0 there
        yield from cases_on_ranks(on_rank, answer, seed, some_norm_is_0)


def _norm_of_norms(grads: list[Tensor]) -> Tensor:
    return torch.tensor(sum((grad.float().square().sum().item() for grad in grads), 0.0)).sqrt()


def _each_tensor_by_its_own(grads: list[Tensor], max_norm: float) -> float:
    norm = right(grads, float("inf"))
    for grad in grads:
        grad.mul_(min(1.0, max_norm / max(grad.float().norm().item(), 1e-30)))
    return norm


def _own_norm_for_clipping(grads: list[Tensor], max_norm: float) -> float:
    own = _norm_of_norms(grads).item()
    norm = right(grads, float("inf"))
    if own > max_norm:
        for grad in grads:
            grad.mul_(max_norm / own)
    return norm


def _own_norm_for_deciding(grads: list[Tensor], max_norm: float) -> float:
    own = _norm_of_norms(grads).item()
    return right(grads, max_norm if own > max_norm else float("inf"))


def _own_norm_for_clipping_even_0(grads: list[Tensor], max_norm: float) -> float:
    own = _norm_of_norms(grads).item()
    norm = right(grads, float("inf"))
    factor = min(1.0, max_norm / own)
    for grad in grads:
        grad.mul_(factor)
    return norm


def _leaves_if_empty(grads: list[Tensor], max_norm: float) -> float:
    return right(grads, max_norm) if grads else 0.0


ZERO = "total = torch.zeros(())"
SQUARES = "total += grad.float().square().sum()"
REDUCE = "dist.all_reduce(total)"
NORM = "norm = total.sqrt().item()"
CLIP = "grad.mul_(max_norm / norm)"
OWN_DTYPE = (
    "the squares are computed in the gradients' own dtype: in fp16, 256² is inf already, and 2^-13 "
    "squared is 0. Call `.float()` first"
)
SCALES_UP = (
    "gradients whose norm is below `max_norm` are scaled up to it: multiply only if the norm is "
    "above"
)
OWN_NORM = (
    "the norm returned is right, but this rank clips by its own norm, {own}: all ranks have to use "
    "one factor"
)
ADD_SQUARES = "squares can be added up, norms cannot"

mistakes = [
    Mistake(
        "the local norm",
        "this is the norm of this rank's gradients alone, {own}: add up the squares over all "
        "ranks, by `dist.all_reduce`, before the root",
        edits={REDUCE: "pass"},
        violates="the gradients of all ranks together",
    ),
    Mistake(
        "the sum of the norms",
        f"this adds up the ranks' norms: {ADD_SQUARES}. Take the root after the all-reduce",
        edits={NORM: "norm = total.item()", REDUCE: "total.sqrt_(); dist.all_reduce(total)"},
    ),
    Mistake(
        "the sum of the tensors' norms",
        f"this adds up the norms of the tensors: {ADD_SQUARES}. Add up squares, and take the root "
        f"at the end",
        edits={SQUARES: "total += grad.float().norm()", NORM: "norm = total.item()"},
    ),
    Mistake(
        "only rank 0 gets the sum",
        "rank 0 alone has the sum over all ranks, as after `dist.reduce`, and every rank needs "
        "it: `dist.all_reduce` gives it to all",
        edits={REDUCE: "dist.reduce(total, dst=0)"},
    ),
    Mistake(
        "the largest norm",
        "this is the larger one of the ranks' norms: the squares of all ranks add up",
        edits={REDUCE: "dist.all_reduce(total, op=dist.ReduceOp.MAX)"},
    ),
    Mistake(
        "the mean of the norms",
        f"this is the mean of the ranks' norms: {ADD_SQUARES}. Take the root after the "
        f"all-reduce, and divide by "
        "nothing",
        edits={
            NORM: "norm = total.item() / dist.get_world_size()",
            REDUCE: "total.sqrt_(); dist.all_reduce(total)",
        },
    ),
    Mistake(
        "the mean of the squares",
        "the sum of squares is divided by the number of ranks. The ranks hold different "
        "gradients, not copies: their squares add up",
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
        "the sum of the squares is cast to fp16 for the all-reduce, where it is inf beyond "
        "65,504: a single number may well travel in fp32",
        edits={REDUCE: "total = total.half()\n" + REDUCE},
        violates="let it travel in fp32",
    ),
    Mistake(
        "the norm of each tensor in fp16",
        "the norm of an fp16 tensor is itself an fp16 number: it is inf beyond 65,504. Call "
        "`.float()` before you take the norm",
        edits={SQUARES: "total += grad.norm().float().square()"},
    ),
    Mistake(
        "always scales",
        SCALES_UP,
        edits={"if norm > max_norm:": "if norm > 0:"},
        violates="below, change nothing",
    ),
    Mistake(
        "always scales, even a norm of 0", SCALES_UP, edits={"if norm > max_norm:": "if True:"}
    ),
    Mistake(
        "always scales, even a norm of 0, in tensors",
        SCALES_UP,
        edits={"if norm > max_norm:": "if True:", CLIP: "grad.mul_(max_norm / total.sqrt())"},
        violates="the norm may be 0",
    ),
    Mistake(
        "never scales",
        "the norm is right, but the tensors in the list are unchanged: multiply each in place, by "
        "`grad.mul_(…)`",
        edits={CLIP: "pass"},
        violates="in place",
    ),
    Mistake(
        "replaces the tensors",
        "the list gets new tensors, and those that were in it, which are the parameters' "
        "gradients, stay as they are: multiply each in place, by `grad.mul_(…)`",
        edits={CLIP: "grads[:] = [one * (max_norm / norm) for one in grads]\nbreak"},
    ),
    Mistake("clips by its own norm", OWN_NORM, answer=_own_norm_for_clipping),
    Mistake("clips by its own norm, even 0", OWN_NORM, answer=_own_norm_for_clipping_even_0),
    Mistake(
        "decides by its own norm",
        "this rank looks at its own norm, {own}, to decide whether to clip: all ranks have to "
        "decide by the norm of all gradients, or only some of them clip",
        answer=_own_norm_for_deciding,
    ),
    Mistake(
        "clips each tensor",
        "each tensor is clipped by its own norm, which changes the direction of the step: one "
        "factor for all",
        answer=_each_tensor_by_its_own,
    ),
    Mistake(
        "clamps the elements",
        "the elements are clamped one by one, which changes the direction of the step: multiply "
        "all of them by one factor, `max_norm / norm`",
        edits={CLIP: "grad.clamp_(-max_norm, max_norm)"},
    ),
    Mistake(
        "a rank with nothing leaves",
        "a rank without gradients returns before the all-reduce, and the other waits there "
        "forever: it has to take part, with a sum of 0",
        answer=_leaves_if_empty,
        violates="the list may be empty",
    ),
    Mistake(
        "returns the norm after clipping",
        "this is the norm after clipping: return the one before, as `clip_grad_norm_` does, for "
        "the log",
        edits={"return norm": "return min(norm, max_norm)"},
    ),
]

clip_sharded = Exercise(card, right, cases, mistakes, tolerance=2e-3)
