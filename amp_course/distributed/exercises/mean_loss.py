"""Exercise 1 of chapter 10: the mean loss over ranks whose batches differ in size."""

import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from amp_course.checking import Card, Case, Exercise, Mistake, read_number
from amp_course.distributed.ranks import call_on_rank, cases_on_ranks

card = Card(
    chapter="distributed",
    name="mean_loss",
    number=1,
    title="One loss to log",
    difficulty=2,
    importance=4,
    minutes=8,
    lines=5,
    task="Write `mean_loss(loss, samples)`, which every rank calls after its last batch. `loss` "
    "is the mean loss over this rank's `samples` samples, a 0-d tensor in fp32 or fp16. Return "
    "the mean over the samples of all ranks, a number that is the same on each. Ranks may have "
    "different numbers of samples; a rank with none has the loss NaN, which must not count. The "
    "NaN of a rank that has samples must come out as NaN. Compute in fp32.",
    hints=(
        "Rank 0 has 3 samples with mean 1.0, rank 1 has one with 5.0. The mean over all four is "
        "2.0, not 3.0: what do you have to add up?",
        "Add up two numbers over the ranks: the sum of the losses (mean times samples) and the "
        "count. On a rank without samples the sum is 0, and NaN times 0 is still NaN.",
        "`sums = torch.tensor([float(loss) * samples if samples else 0.0, float(samples)])`, then "
        "`dist.all_reduce(sums)`, and return `sums[0] / sums[1]` as a float.",
    ),
    why="The last batch of an epoch is rarely of equal size everywhere, and a mean of means then "
    "gives some samples more weight than others.",
    alternative="`dist.all_gather_object(pairs, (float(loss), samples))` and plain Python: "
    "slower, and easy to read.",
)


def right(loss: Tensor, samples: int) -> float:
    total = float(loss) * samples if samples else 0.0
    sums = torch.tensor([total, float(samples)])
    dist.all_reduce(sums)
    return (sums[0] / sums[1]).item()


# (loss, samples) of rank 0 and of rank 1
CASES = (
    ((1.0, 3), (5.0, 1)),
    ((0.25, 64), (0.75, 64)),
    ((2.5, 1), (0.5, 40_000)),  # 20,000 + 2.5: in fp16, the 2.5 would be lost
    ((math.nan, 0), (1.5, 7)),
    ((1.25, 12), (math.nan, 0)),
    ((3.0, 40_000), (2.0, 30_000)),  # the sums lie beyond fp16
    ((math.nan, 5), (1.5, 7)),
    ((0.5, 6), (math.nan, 2)),
)
DTYPES = {torch.float32: "in fp32", torch.float16: "in fp16"}
WEIGHTS = "how the ranks' means are weighted"


def on_rank(answer: Callable[..., Any], cases: list[tuple[tuple[float, int], ...]]) -> list[Case]:
    """Call the answer for each case, in both dtypes, with what this rank has; return its turns."""
    turns = []
    for case in cases:
        for dtype, named in DTYPES.items():
            feedback = " and ".join(
                f"{loss:g} over {n:,} sample{'' if n == 1 else 's'}" for loss, n in case
            )
            feedback = f"for losses of {feedback}, {named}"
            loss, samples = case[dist.get_rank()]
            got = call_on_rank(answer, feedback, torch.tensor(loss, dtype=dtype), samples)
            number = read_number(got, feedback)
            alike = "all alike" if _is_mean_of_means(number, case) else "by their samples"
            facts = {"total": f"{sum(n for _, n in case):,}", "number": f"{number:g}"}
            turns.append(Case(feedback, {WEIGHTS: alike, "the mean loss": number}, facts))
    return turns


def _is_mean_of_means(number: float, case: tuple[tuple[float, int], ...]) -> bool:
    """Return True for the mean of the ranks' means, where that is not the mean over all samples."""
    (one, count), (other, number_of_others) = case
    if count == number_of_others or not math.isfinite(one + other):
        return False
    right_one = (one * count + other * number_of_others) / (count + number_of_others)
    return math.isclose(number, (one + other) / 2, rel_tol=1e-3) and not math.isclose(
        number, right_one, rel_tol=1e-4
    )


def cases(answer: Callable[..., Any], draw: random.Random) -> Iterator[Case]:
    """Equal and unequal numbers, a rank with none, sums beyond fp16, and drawn ones."""
    drawn = [
        tuple((draw.randint(1, 40) / 8, draw.randint(1, 90)) for _ in range(2)) for _ in range(2)
    ]
    cases = [*CASES, *drawn]
    some_empty = [case for case in cases if not all(samples for _, samples in case)]
    yield from cases_on_ranks(on_rank, answer, [case for case in cases if case not in some_empty])
    yield from cases_on_ranks(
        on_rank, answer, some_empty
    )  # apart, for many an answer that is wrong before raises here


def _mean_of_means(loss: Tensor, samples: int) -> float:
    means = loss.float().clone()
    dist.all_reduce(means)
    return means.item() / dist.get_world_size()


def _only_where_it_counts(loss: Tensor, samples: int) -> float:
    sums = torch.tensor([float(loss) * samples, float(samples)])
    if samples:
        dist.all_reduce(sums)
    return (sums[0] / sums[1]).item()


WEIGH = (
    "weigh each rank's mean by its samples: add up `loss * samples` and `samples` over the ranks, "
    "then divide"
)
OWN_SAMPLES = (
    "the sum over all ranks is divided by this rank's samples alone: divide by those of all ranks, "
    "{total}"
)

mistakes = [
    Mistake(
        "the mean of the means",
        f"this is the mean of the ranks' means, as if all had equally many samples: {WEIGH}",
        answer=_mean_of_means,
        violates="Ranks may have different numbers of samples",
    ),
    Mistake(
        "this rank's own",
        "this is the loss of this rank alone, and each rank returns a different number: "
        "`dist.all_reduce` adds up over the ranks",
        answer=lambda loss, samples: loss.item(),
        violates="the mean over the samples of all ranks",
    ),
    Mistake(
        "NaN of an empty rank",
        "one rank has no samples and the loss NaN, and NaN times 0 is NaN: let such a rank add 0",
        edits={
            "total = float(loss) * samples if samples else 0.0": "total = float(loss) * samples"
        },
        violates="a rank with none has the loss NaN",
    ),
    Mistake(
        "hides a NaN that counts",
        "the NaN of a rank that has samples comes out as a plain number, so the log looks healthy "
        "while training is lost: leave out a rank because it has no samples, not because its loss "
        "is NaN",
        edits={
            "total = float(loss) * samples if samples else 0.0": "total = "
            "loss.float().nan_to_num().item() * samples"
        },
        violates="must come out as NaN",
    ),
    Mistake(
        "leaves out a rank with NaN",
        "a rank whose loss is NaN is left out, even if it has samples, so the log looks healthy "
        "while training is lost: leave out a rank because it has no samples, not because its loss "
        "is NaN",
        edits={
            "total = float(loss) * samples if samples else 0.0": "samples = 0 if loss.isnan() else "
            "samples; total = loss.float().nan_to_num().item() * samples"
        },
    ),
    Mistake(
        "an empty rank does not take part",
        "a rank without samples leaves out the all-reduce, and the other waits there forever. "
        "Every rank has to call it; one with no samples adds 0",
        answer=_only_where_it_counts,
        violates="which every rank calls",
    ),
    Mistake(
        "reduces to rank 0",
        "rank 0 alone has the sums over all ranks, as after `dist.reduce`: `dist.all_reduce` "
        "gives them to all",
        edits={"dist.all_reduce(sums)": "dist.reduce(sums, dst=0)"},
        violates="the same on each",
    ),
    Mistake(
        "sums in the loss's dtype",
        "the sums are in the dtype of the loss. In fp16 they are rounded to 11 bits, and beyond "
        "65,504 they are inf: add up in fp32",
        edits={
            "sums = torch.tensor([total, float(samples)])": "sums = torch.tensor([total, samples], "
            "dtype=loss.dtype)"
        },
        violates="Compute in fp32",
    ),
    Mistake(
        "multiplies in the loss's dtype",
        "`loss * samples` is computed in the dtype of the loss. In fp16 it is rounded to 11 bits, "
        "and beyond 65,504 it is inf: call `.float()` before you multiply",
        edits={
            "total = float(loss) * samples if samples else 0.0": "total = (loss * samples).item() "
            "if samples else 0.0"
        },
    ),
    Mistake(
        "the sum of the means",
        f"this is the sum of the ranks' means: {WEIGH}",
        edits={
            "total = float(loss) * samples if samples else 0.0": "total = float(loss) if samples "
            "else 0.0",
            "return (sums[0] / sums[1]).item()": "return sums[0].item()",
        },
    ),
    Mistake(
        "divides the means by all samples",
        "`loss` is a mean already: the sum over this rank's samples is `loss * samples`, and that "
        "is what has to be added up over the ranks",
        edits={
            "total = float(loss) * samples if samples else 0.0": "total = float(loss) if samples "
            "else 0.0"
        },
    ),
    Mistake(
        "divides by this rank's samples",
        OWN_SAMPLES,
        edits={"return (sums[0] / sums[1]).item()": "return (sums[0] / samples).item()"},
    ),
    Mistake(
        "divides by this rank's samples, in Python",
        OWN_SAMPLES,
        edits={"return (sums[0] / sums[1]).item()": "return sums[0].item() / samples"},
    ),
    Mistake(
        "returns the sum",
        "this is the sum over all samples: divide by their number, {total}",
        edits={"return (sums[0] / sums[1]).item()": "return sums[0].item()"},
    ),
]

mean_loss = Exercise(
    card,
    right,
    cases,
    mistakes,
    tolerance=1e-4,
    messages={
        WEIGHTS: f"{{case}}, your {{number}} is the mean of the ranks' means, as if all had "
        f"equally many samples: {WEIGH}"
    },
)
