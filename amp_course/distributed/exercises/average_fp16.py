"""Exercise 5 of chapter 10: average gradients over ranks in fp16 without losing any to its
range.
"""

import collections
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from amp_course.checking import Card, Case, Exercise, Mistake, read_tensor
from amp_course.distributed.ranks import (
    Collective,
    call_on_rank,
    cases_on_ranks,
    collectives_so_far,
)

card = Card(
    chapter="distributed",
    name="average_fp16",
    number=5,
    title="Half the bytes, the same mean",
    difficulty=4,
    importance=4,
    minutes=20,
    lines=8,
    task="Write `average_fp16(gradient, group)`, which the ranks of a process group call: return "
    "the mean of an fp32 tensor over these ranks, in fp32, but let it travel in **fp16**; a few "
    "extra numbers may travel in any dtype. The largest element may lie anywhere from 1e-30 to "
    "1e30, on one rank or on all. Every element of the result has to be right to within 0.2 % of "
    "the result's largest one, and none may be inf or NaN. Gradients of 0 stay 0. If some rank has "
    "an inf or a NaN, so must the result, on all ranks. You may overwrite `gradient`.",
    hints=(
        "A sum over N ranks can be N times as large as its largest term. What is "
        "the largest factor that you can multiply by before the cast, so that the sum still fits?",
        "All ranks need the same factor, so they have to agree on the largest element first, one "
        "number, reduced with MAX.",
        "`largest = gradient.abs().max()`, all-reduced with MAX; `factor = 2.0**14 / largest / "
        "ranks`; cast `gradient * factor` to fp16, all-reduce it, go back to fp32, and divide by "
        "`factor` and by `ranks`. What if `largest` is 0?",
    ),
    why="A sum in fp16 overflows over many ranks, and dividing first loses the small terms: a "
    "common scale avoids both.",
    alternative="gather the fp16 tensors with `dist.all_gather` and add up in fp32: then "
    "each rank can have its own scale, but more bytes travel if there are many ranks.",
)


def right(gradient: Tensor, group: Any) -> Tensor:
    ranks = dist.get_world_size(group)
    largest = gradient.abs().max()
    dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group)
    if largest == 0:
        return torch.zeros_like(gradient)
    factor = 2.0**14 / largest / ranks
    short = (gradient * factor).half()
    dist.all_reduce(short, group=group)
    return short.float() / factor / ranks


# The largest element on rank 0 and on rank 1, and the case in words
SIZES = (
    (0.5, 0.25, "for gradients of ordinary size"),
    (6e4, 6e4, "for elements up to 60,000 on both ranks, whose sum lies beyond fp16"),
    (1e-29, 1e-30, "for elements up to 1e-29"),
    (1e4, 1e-9, "for elements up to 10,000 on rank 0 and 1e-9 on rank 1"),
    (1e-9, 1e4, "for elements up to 1e-9 on rank 0 and 10,000 on rank 1"),
    (0.0, 3.0, "for gradients of 0 on rank 0"),
)
MORE_SIZES = (
    (1e9, 3e8, "for elements up to 1e9, far beyond fp16"),
    (1e-7, 6e-8, "for elements up to 1e-7, where fp16 ends"),
    (1e-12, 1e-12, "for elements up to 1e-12, far below fp16"),
    (1e30, 1e29, "for elements up to 1e30"),
    (1e-30, 1e30, "for elements up to 1e-30 on rank 0 and 1e30 on rank 1"),
    (0.0, 0.0, "for gradients of 0"),
)
FINITE, UNITS = "whether all of the mean is finite", "whose scale the result has"
SENT, EVERYWHERE = "what the gradient travels in", "collectives that run over all ranks"
THROUGH = "whether an inf or a NaN came through"


def on_rank(answer: Callable[..., Any], seed: int, more: bool) -> list[Case]:
    """Average the first sizes, or with `more` the others, in a group of one rank, and inf and
    NaN.
    """
    rank, ranks, found = dist.get_rank(), range(dist.get_world_size()), []
    generators = [torch.Generator().manual_seed(seed + one) for one in ranks]

    def drawn(size: float, rank: int = rank) -> Tensor:
        # So many that the few extra numbers, even pickled, are fewer
        gradient = torch.rand(6, 160, generator=generators[rank]) * 2 - 1
        gradient[0, :2], gradient[0, 2] = 1.0, -1.0  # the largest ones meet the other rank's
        return gradient * size

    def spiked(size: float, rank: int) -> Tensor:
        gradient = torch.rand(6, 1000, generator=generators[rank]) * -1e-6
        gradient[rank, 7] = 1.0
        return gradient * size

    def average(case: str, gradient: Tensor, group: Any) -> tuple[Tensor, list[Collective]]:
        before, shape = len(collectives_so_far()), gradient.shape
        got = read_tensor(call_on_rank(answer, case, gradient, group), case, shape=shape)
        return got, collectives_so_far()[before:]

    inputs = [
        (case, [drawn(sizes[one], one) for one in ranks])
        for *sizes, case in (MORE_SIZES if more else SIZES)
    ]
    if more:
        words = "for one {} element of {:,g} on each rank, and thousands of small {} ones"
        for sign, other, size in (("positive", "negative", 1.0), ("negative", "positive", -6e4)):
            inputs.append((words.format(sign, size, other), [spiked(size, one) for one in ranks]))
    for case, gradients in inputs:
        gradient = gradients[rank].clone()
        room = (
            "an fp16 number ends at 65,504, and so does the sum over the ranks. The factor has to "
            "keep both below"
            if gradient.any()
            else "do you compute a factor from 0?"
        )
        got, called = average(case, gradient, dist.group.WORLD)
        sums = collections.Counter[str]()  # a gradient may travel in pieces
        for one in called:
            sums[one.dtype] += one.elements
        large = sorted(dtype for dtype, count in sums.items() if count >= got.numel())
        sent = " and ".join(large) or "float16"
        outputs = {
            FINITE: bool(got.isfinite().all()),
            UNITS: "its own" if _is_in_own_units(got, gradients, rank) else "that of all",
            SENT: sent,
            "the mean": got,
        }
        found.append(Case(case, outputs, {"room": room}, {"sent": sent, "the mean": got}))
    if not more:
        return found
    alone = [dist.new_group([one]) for one in ranks][rank]
    for sizes in ((1e-9, 5e4), (5e4, 1e-9)):
        case = f"for a group of one rank, with elements up to {sizes[rank]:,g}"
        got, called = average(case, drawn(sizes[rank]), alone)
        too_many = next((one.name for one in called if len(one.group) > 1), "")
        found.append(Case(case, {EVERYWHERE: too_many, "the mean": got}))
    for bad, place in (("an inf", 0), ("a -inf", 1), ("a nan", 1), ("a nan", 0)):
        case = f"for gradients with {bad} on rank {place}"
        gradient = drawn(1.0)
        if place == rank:
            gradient[3, 4] = float(bad.split()[1])
        got, _ = average(case, gradient, dist.group.WORLD)
        found.append(Case(case, {THROUGH: not got.isfinite().all()}))
    return found


def _is_in_own_units(got: Tensor, gradients: list[Tensor], rank: int) -> bool:
    """Return True for the result of scaling each rank's gradient by its own largest element."""
    sizes = [float(one.abs().max()) for one in gradients]
    terms = [one.double() / (size or 1.0) for one, size in zip(gradients, sizes, strict=True)]
    mixed = torch.stack(terms).mean(dim=0) * sizes[rank]
    error = (got.double() - mixed).abs().max()
    return len({*sizes}) > 1 and bool(error <= 0.01 * mixed.abs().max())


def cases(answer: Callable[..., Any], draw: random.Random) -> Iterator[Case]:
    """Gradients of all sizes, equal and unequal ones, zeros, a group of one rank, inf and NaN."""
    seed = draw.randrange(10_000)
    for more in (False, True):  # in two calls, since the first sizes identify most mistakes
        yield from cases_on_ranks(on_rank, answer, seed, more)


RANKS, OWN_LARGEST = "ranks = dist.get_world_size(group)", "largest = gradient.abs().max()"
LARGEST = "dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group)"
FACTOR, SHORT = "factor = 2.0**14 / largest / ranks", "short = (gradient * factor).half()"
BACK = "return short.float() / factor / ranks"

mistakes = [
    Mistake(
        "adds up, then divides",
        "the unscaled gradients are added up in fp16: the sum overflows beyond 65,504, and what "
        "is below fp16's smallest number is lost. Scale them before the cast",
        edits={FACTOR: "factor = 1.0"},
        violates="none may be inf or NaN",
    ),
    Mistake(
        "divides before the cast",
        "dividing by the number of ranks before the cast protects the sum from overflow, but not "
        "the terms: small ones are lost, large ones are still inf. Scale by the largest element",
        edits={FACTOR: "factor = 1.0 / ranks"},
        violates="right to within 0.2 % of the result's largest one",
    ),
    Mistake(
        "a fixed scale",
        "a fixed factor of 1,024 saves some small elements but makes large ones overflow: compute "
        "the factor from the largest element",
        edits={FACTOR: "factor = 1024.0 / ranks"},
    ),
    Mistake(
        "ignores the group",
        "the sum is taken over all ranks, not over `group`: pass `group=group` to that collective",
        edits={"dist.all_reduce(short, group=group)": "dist.all_reduce(short)"},
    ),
    Mistake(
        "the largest over all ranks",
        "the largest element is reduced over all ranks, not over `group`: pass `group=group` to "
        "that collective too",
        edits={LARGEST: LARGEST.replace(", group=group", "")},
    ),
    Mistake(
        "the largest without abs",
        "`gradient.max()` is the largest positive element. Where a negative one is larger in "
        "magnitude, the factor is far too large, or negative: take `gradient.abs().max()`",
        edits={OWN_LARGEST: "largest = gradient.max()"},
        violates="The largest element",
    ),
    Mistake(
        "the mean and not the largest",
        "the factor is computed from a typical magnitude, such as the mean, but one element can "
        "be thousands of times as large: take the largest, `gradient.abs().max()`",
        edits={OWN_LARGEST: "largest = gradient.abs().mean()"},
    ),
    Mistake(
        "an epsilon",
        "a constant that is added to the largest element, or is its lower limit, is larger than "
        "these small gradients, which are lost: treat only a largest element of 0 separately",
        edits={FACTOR: "factor = 2.0**14 / (largest + 1e-12) / ranks"},
    ),
    Mistake(
        "a rank with zeros leaves",
        "a rank whose gradients are all 0 does not call the collective, and the others wait "
        "there forever: decide by the largest element of all ranks",
        edits={OWN_LARGEST: f"{OWN_LARGEST}\nif largest == 0:\n    return gradient"},
    ),
    Mistake(
        "each rank its own factor",
        "every rank scales by its own largest element, so the sum mixes different units: "
        "all-reduce the largest element with MAX first",
        edits={LARGEST: "pass"},
        violates="on one rank or on all",
    ),
    Mistake(
        "rank 0's largest",
        "the factor comes from one rank's largest element, and a larger one on another rank "
        "overflows: all-reduce the largest with MAX",
        edits={LARGEST: "dist.broadcast(largest, dist.get_global_rank(group, 0), group=group)"},
        violates="on one rank or on all",
    ),
    Mistake(
        "the least of the largest",
        "the factor comes from the smallest of the ranks' largest elements, so larger ones "
        "overflow: reduce with MAX",
        edits={LARGEST: LARGEST.replace("MAX", "MIN")},
    ),
    Mistake(
        "no room for the sum",
        "the factor brings the largest element to just below 65,504, so the sum of two such "
        "elements overflows: divide the factor by the number of ranks",
        edits={FACTOR: "factor = 2.0**15.9 / largest"},
    ),
    Mistake(
        "travels in fp32",
        "the gradient travels in fp32, with 4 bytes per element: cast it to fp16 before the "
        "collective",
        edits={SHORT: "short = gradient * factor"},
        violates="let it travel in **fp16**",
    ),
    Mistake(
        "travels in bf16",
        "the gradient travels in bf16, which has only 8 significant bits: the errors are 8 times "
        "those of fp16",
        edits={SHORT: "short = (gradient * factor).bfloat16()"},
    ),
    Mistake(
        "forgets the mean",
        "this is the sum over the ranks: divide by their number",
        edits={BACK: "return short.float() / factor"},
        violates="return the mean",
    ),
    Mistake(
        "forgets the factor",
        "the result is still multiplied by the factor: divide by it, in fp32",
        edits={BACK: "return short.float() / ranks"},
    ),
    Mistake(
        "divides in fp16",
        "the sum is divided by the factor while it is still in fp16, so the result has fp16's "
        "range again: call `.float()` first",
        edits={BACK: "return (short / factor / ranks).float()"},
    ),
    Mistake(
        "NaN for zeros",
        "where all gradients are 0, the factor is 1/0 = inf, and 0 · inf is NaN: treat that case "
        "separately",
        edits={"if largest == 0:": "if False:"},
        violates="Gradients of 0 stay 0",
    ),
    Mistake(
        "hides inf and NaN",
        "inf and NaN come out as finite numbers, so no scaler can skip the step: let them through",
        edits={BACK: "return (short.float() / factor / ranks).nan_to_num(0.0, 0.0, 0.0)"},
        violates="If some rank has an inf or a NaN, so must the result",
    ),
    Mistake(
        "counts two ranks",
        "the mean is always taken over 2 ranks: use `dist.get_world_size(group)`",
        edits={RANKS: "ranks = 2"},
        violates="over these ranks",
    ),
    Mistake(
        "returns fp16",
        "the result is cast to fp16 at the end, and has its range again: return fp32",
        edits={BACK: "return (short.float() / factor / ranks).half()"},
        violates="in fp32",
    ),
]

average_fp16 = Exercise(
    card,
    right,
    cases,
    mistakes,
    tolerance=2e-3,
    messages={
        FINITE: "{case}, the result holds an inf or a NaN: {room}",
        UNITS: "{case}, the result is what you get if each rank scales by its own largest "
        "element, so the sum mixes different units: agree on one largest element first, by an "
        "all-reduce with MAX",
        SENT: "{case}, the gradient travels in {got}: collectives have to send fp16",
        EVERYWHERE: "{case}, `{got}` runs over all ranks, not only over `group`: pass "
        "`group=group` to it",
        THROUGH: "{case}, all of the result is finite: an inf or a NaN on any rank has to show "
        "on all ranks, so that a scaler can skip the step",
    },
)
