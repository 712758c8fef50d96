"""Exercise 5 of chapter 10: average gradients over ranks in fp16,
with nothing lost to its range.
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
    "the largest one, and none may be inf or NaN. Gradients of 0 stay 0. If some rank has an inf "
    "or a NaN, so must the result, on all ranks. You may overwrite `gradient`.",
    hints=(
        "A sum over N ranks can be N times as large as its largest term. By which factor can you "
        "multiply before the cast, so that the sum still fits and the small elements are lifted "
        "as far as possible?",
        "All ranks need the same factor, so they have to agree on the largest element first: one "
        "number, reduced with MAX.",
        "`largest = gradient.abs().max()`, all-reduced with MAX; `factor = 2.0**14 / largest / "
        "ranks`; cast `gradient * factor` to fp16, all-reduce it, go back to fp32, and divide by "
        "`factor` and by `ranks`. What if `largest` is 0?",
    ),
    why="A sum in fp16 overflows over many ranks, and dividing first loses the small terms: a "
    "common scale avoids both.",
    alternative="gather the fp16 tensors with `dist.all_gather` and add up in fp32: each rank can "
    "then have a scale of its own, but more bytes travel over many ranks.",
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
FITS = (
    "an fp16 number ends at 65,504, and so does the sum over the ranks. The factor has to keep "
    "both below"
)
ZEROS = "does a factor that is computed from 0 come into it?"
BAD = (("inf", 0), ("-inf", 1), ("nan", 1), ("nan", 0))  # what, and on which rank
ELEMENTS = 960  # so many that the few extra numbers, even pickled, are fewer
UNITS = "whose scale the result has"


def on_rank(answer: Callable[..., Any], seed: int, more: bool) -> list[Case]:
    """Let the answer average the first cases, or with `more` the others and some over a group of
    one rank; return the turns.
    """
    rank, turns = dist.get_rank(), []
    ranks = range(dist.get_world_size())
    generators = [torch.Generator().manual_seed(seed + one) for one in ranks]

    def spiked(size: float, rank: int = rank) -> Tensor:
        """Return one large element among thousands of small ones of the other sign."""
        gradient = torch.rand(6, 1000, generator=generators[rank]) * -1e-6
        gradient[rank, 7] = 1.0
        return gradient * size

    def drawn(size: float, rank: int = rank) -> Tensor:
        gradient = torch.rand(6, ELEMENTS // 6, generator=generators[rank]) * 2 - 1
        gradient[0, :2], gradient[0, 2] = 1.0, -1.0  # the largest ones meet the other rank's
        return gradient * size

    def average(case: str, gradient: Tensor, group: Any) -> tuple[Tensor, list[Collective]]:
        before, shape = len(collectives_so_far()), gradient.shape
        got = read_tensor(call_on_rank(answer, case, gradient, group), case, shape=shape)
        return got, collectives_so_far()[before:]

    everyones = [
        (case, [drawn(sizes[one], one) for one in ranks])
        for *sizes, case in (MORE_SIZES if more else SIZES)
    ]
    spikes = (("positive", "negative", 1.0), ("negative", "positive", -6e4)) if more else ()
    for sign, other, size in spikes:
        case = (
            f"for one {sign} element of {size:,g} on each rank, and thousands of small {other} ones"
        )
        everyones.append((case, [spiked(size, one) for one in ranks]))
    for case, gradients in everyones:
        gradient = gradients[rank].clone()
        elements = gradient.numel()
        room = FITS if gradient.any() else ZEROS
        got, called = average(case, gradient, dist.group.WORLD)
        sums = collections.Counter[str]()  # a gradient may travel in pieces
        for one in called:
            sums[one.dtype] += one.elements
        sent = (
            " and ".join(sorted(dtype for dtype, count in sums.items() if count >= elements))
            or "float16"
        )
        outputs = {
            "whether all of the mean is finite": bool(got.isfinite().all()),
            UNITS: "its own" if _is_in_own_units(got, gradients, rank) else "that of all",
            "the mean": got,
            "what the gradient travels in": sent,
        }
        turns.append(Case(case, outputs, {"room": room}, {"sent": sent, "the mean": got}))
    if not more:
        return turns
    alone = [dist.new_group([one]) for one in range(dist.get_world_size())][rank]
    for sizes in ((1e-9, 5e4), (5e4, 1e-9)):
        case = f"for a group of one rank, with elements up to {sizes[rank]:,g}"
        got, called = average(case, drawn(sizes[rank]), alone)
        too_many = next((one.name for one in called if len(one.group) > 1), "")
        turns.append(Case(case, {"collectives that run over all ranks": too_many, "the mean": got}))
    for bad, place in BAD:
        case = f"for gradients with {'an' if bad == 'inf' else 'a'} {bad} on rank {place}"
        gradient = drawn(1.0)
        if place == rank:
            gradient[3, 4] = float(bad)
        got, _ = average(case, gradient, dist.group.WORLD)
        turns.append(Case(case, {"whether an inf or a NaN came through": not got.isfinite().all()}))
    return turns


def _is_in_own_units(got: Tensor, gradients: list[Tensor], rank: int) -> bool:
    """Return True for the result of scaling each rank's gradient by its own largest element."""
    sizes = [float(one.abs().max()) for one in gradients]
    terms = [one.double() / size for one, size in zip(gradients, sizes, strict=True) if size]
    if len({*sizes}) == 1 or not terms:
        return False
    mixed = sum(terms, torch.zeros(())) * sizes[rank] / len(gradients)
    return bool((got.double() - mixed).abs().max() <= 0.01 * mixed.abs().max()) and bool(
        got.isfinite().all()
    )


def cases(answer: Callable[..., Any], draw: random.Random) -> Iterator[Case]:
    """Gradients of all sizes, equal and unequal ones, zeros, a group of one rank, inf and NaN."""
    seed = draw.randrange(10_000)
    for more in (False, True):  # two pieces, for most mistakes are told apart by the first
        yield from cases_on_ranks(on_rank, answer, seed, more)


def _largest_over_all_ranks(gradient: Tensor, group: Any) -> Tensor:
    ranks = dist.get_world_size(group)
    largest = gradient.abs().max()
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    if largest == 0:
        return torch.zeros_like(gradient)
    factor = 2.0**14 / largest / ranks
    short = (gradient * factor).half()
    dist.all_reduce(short, group=group)
    return short.float() / factor / ranks


def _leaves_with_zeros(gradient: Tensor, group: Any) -> Tensor:
    return right(gradient, group) if gradient.any() else torch.zeros_like(gradient)


def _by_a_fixed_scale(scale: float) -> Callable[..., Tensor]:
    def average(gradient: Tensor, group: Any) -> Tensor:
        ranks = dist.get_world_size(group)
        short = (gradient * scale / ranks).half()
        dist.all_reduce(short, group=group)
        return short.float() / scale

    return average


def _sum_first(gradient: Tensor, group: Any) -> Tensor:
    short = gradient.half()
    dist.all_reduce(short, group=group)
    return short.float() / dist.get_world_size(group)


OWN_LARGEST = "largest = gradient.abs().max()"
LARGEST = "dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group)"
ZERO = "if largest == 0:\n    return torch.zeros_like(gradient)"
FACTOR = "factor = 2.0**14 / largest / ranks"
SHORT = "short = (gradient * factor).half()"
REDUCE = "dist.all_reduce(short, group=group)"
BACK = "return short.float() / factor / ranks"
RANKS = "ranks = dist.get_world_size(group)"

mistakes = [
    Mistake(
        "adds up, then divides",
        "the gradients are cast as they are and added up in fp16: the sum overflows beyond "
        "65,504, and what is below fp16's smallest number is lost. Scale them first",
        answer=_sum_first,
        violates="none may be inf or NaN",
    ),
    Mistake(
        "divides before the cast",
        "dividing by the number of ranks before the cast protects the sum from overflow, but not "
        "the terms: small ones are lost, large ones are still inf. Scale by the largest element",
        answer=_by_a_fixed_scale(1.0),
        violates="right to within 0.2 % of the largest one",
    ),
    Mistake(
        "a fixed scale",
        "a fixed factor of 1,024 lifts some small elements and makes large ones overflow: compute "
        "the factor from the largest element",
        answer=_by_a_fixed_scale(2.0**10),
    ),
    Mistake(
        "ignores the group",
        "the collective that adds up runs over all ranks and not over `group`: pass `group=group` "
        "to it",
        edits={REDUCE: "dist.all_reduce(short)"},
    ),
    Mistake(
        "the largest over all ranks",
        "the largest element is reduced over all ranks and not over `group`, to which some of "
        "them do not belong: pass `group=group` to that collective too",
        answer=_largest_over_all_ranks,
    ),
    Mistake(
        "the largest without abs",
        "`gradient.max()` is the largest positive element: where a negative one is larger in "
        "magnitude, the factor comes out far too large, or negative. Take `gradient.abs().max()`",
        edits={OWN_LARGEST: "largest = gradient.max()"},
        violates="The largest element",
    ),
    Mistake(
        "the mean and not the largest",
        "the factor is computed from a typical magnitude, such as the mean, and one element can "
        "be thousands of times as large: take the largest, `gradient.abs().max()`",
        edits={OWN_LARGEST: "largest = gradient.abs().mean()"},
    ),
    Mistake(
        "an epsilon",
        "a constant that is added to the largest element, or is its least value, is larger itself "
        "than gradients as small as these, which are then lost: treat the largest element 0 on "
        "its own, and nothing else",
        edits={FACTOR: "factor = 2.0**14 / (largest + 1e-12) / ranks"},
    ),
    Mistake(
        "a rank with zeros leaves",
        "a rank whose gradients are all 0 returns before the collective, and the others wait "
        "there forever: decide by the largest element of all ranks",
        answer=_leaves_with_zeros,
    ),
    Mistake(
        "each rank its own factor",
        "every rank scales by its own largest element, so terms in different units are added up: "
        "all-reduce the largest with MAX first",
        edits={LARGEST: "pass"},
        violates="on one rank or on all",
    ),
    Mistake(
        "rank 0's largest",
        "the factor comes from one rank's largest element, and another rank's can be larger, so "
        "that it overflows: all-reduce the largest with MAX",
        edits={LARGEST: "dist.broadcast(largest, dist.get_global_rank(group, 0), group=group)"},
        violates="on one rank or on all",
    ),
    Mistake(
        "the least of the largest",
        "the factor comes from the smallest of the ranks' largest elements, so that larger ones "
        "overflow: reduce with MAX",
        edits={LARGEST: LARGEST.replace("MAX", "MIN")},
    ),
    Mistake(
        "no room for the sum",
        "the factor brings the largest element to just below 65,504, so the sum of two such "
        "overflows: divide the factor by the number of ranks",
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
        "the gradient travels in bf16, which keeps only 8 bits of each element: the errors are 8 "
        "times those of fp16",
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
        "the factor is taken out while the sum is still in fp16, so what was saved is lost there: "
        "call `.float()` first",
        edits={BACK: "return (short / factor / ranks).float()"},
    ),
    Mistake(
        "NaN for zeros",
        "where all gradients are 0, the factor is 1/0 = inf, and 0 · inf is NaN: treat that case "
        "on its own",
        edits={"if largest == 0:": "if False:"},
        violates="Gradients of 0 stay 0",
    ),
    Mistake(
        "hides inf and NaN",
        "inf and NaN come out as plain numbers, so that no scaler can skip the step: let them "
        "through",
        edits={BACK: "return (short.float() / factor / ranks).nan_to_num(0.0, 0.0, 0.0)"},
        violates="If some rank has an inf or a NaN, so must the result",
    ),
    Mistake(
        "counts two ranks",
        "the mean is always taken over 2 ranks: ask `dist.get_world_size(group)`",
        edits={RANKS: "ranks = 2"},
        violates="over these ranks",
    ),
    Mistake(
        "returns fp16",
        "the result is cast to fp16 at the end, so its range is that of fp16 again: return fp32",
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
        "whether all of the mean is finite": "{case}, the result holds an inf or a NaN: {room}",
        UNITS: "{case}, the result is what comes of scaling each rank's gradient by its own "
        "largest element, so numbers in different units were added up: agree on one largest "
        "element first, by an all-reduce with MAX",
        "what the gradient travels in": "{case}, the gradient travels in {got}: what a collective "
        "sends has to be fp16",
        "collectives that run over all ranks": "{case}, `{got}` runs over all ranks and not over "
        "`group` alone: pass `group=group` to it",
        "whether an inf or a NaN came through": "{case}, all of the result is finite: an inf or a "
        "NaN of any rank has to come out on all of them, for a scaler to skip the step",
    },
)
