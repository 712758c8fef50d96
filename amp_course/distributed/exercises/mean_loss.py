"""Exercise 1 of chapter 10: the mean loss over ranks whose batches differ in size."""

import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from amp_course.checking import Card, Case, Exercise, Mistake, families, read_number
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
        "2.0, not 3.0. What do you have to add up?",
        "Add up two numbers over the ranks: the sum of the losses (mean times samples) and the "
        "count. On a rank without samples the sum is 0, and NaN times 0 is still NaN.",
        "`sums = torch.tensor([float(loss) * samples if samples else 0.0, float(samples)])`, then "
        "`dist.all_reduce(sums)`, and return `sums[0] / sums[1]` as a float.",
    ),
    why="The last batch of an epoch rarely has the same size on all ranks, and a mean of means "
    "then gives some samples more weight than others.",
    alternative="`dist.all_gather_object(pairs, (float(loss), samples))` and plain Python: "
    "slower, but easy to read.",
)


def right(loss: Tensor, samples: int) -> float:
    total = float(loss) * samples if samples else 0.0  # NaN * 0 is NaN
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
WEIGHTS = "how the ranks' means are weighted"


def on_rank(answer: Callable[..., Any], inputs: list[tuple[tuple[float, int], ...]]) -> list[Case]:
    """Call the answer with what this rank has, in both dtypes."""
    found = []
    for pairs in inputs:
        for dtype, name in ((torch.float32, "fp32"), (torch.float16, "fp16")):
            words = [f"{loss:g} over {n:,} sample{'' if n == 1 else 's'}" for loss, n in pairs]
            case = f"for losses of {' and '.join(words)}, in {name}"
            loss, samples = pairs[dist.get_rank()]
            got = call_on_rank(answer, case, torch.tensor(loss, dtype=dtype), samples)
            number = read_number(got, case)
            weights = "all alike" if _is_mean_of_means(number, *pairs) else "by their samples"
            facts = {"total": f"{sum(n for _, n in pairs):,}", "number": f"{number:g}"}
            found.append(Case(case, {WEIGHTS: weights, "the mean loss": number}, facts))
    return found


def _is_mean_of_means(number: float, one: tuple[float, int], other: tuple[float, int]) -> bool:
    (loss, n), (other_loss, m) = one, other
    means = math.isclose(number, (loss + other_loss) / 2, rel_tol=1e-3)
    return (
        n != m
        and means
        and not math.isclose(number, (loss * n + other_loss * m) / (n + m), rel_tol=1e-4)
    )


def cases(answer: Callable[..., Any], draw: random.Random) -> Iterator[Case]:
    """Equal and unequal numbers, a rank with none, sums beyond fp16, and drawn ones."""
    drawn = [
        tuple((draw.randint(1, 40) / 8, draw.randint(1, 90)) for _ in range(2)) for _ in range(2)
    ]
    for empty in (False, True):  # many wrong answers raise for a rank with none
        inputs = [pairs for pairs in (*CASES, *drawn) if any(n == 0 for _, n in pairs) == empty]
        yield from cases_on_ranks(on_rank, answer, inputs)


TOTAL = "total = float(loss) * samples if samples else 0.0"
SUMS, REDUCE = "sums = torch.tensor([total, float(samples)])", "dist.all_reduce(sums)"
RETURN = "return (sums[0] / sums[1]).item()"
WEIGH = "add up `loss * samples` and `samples` over the ranks, then divide"
OWN, OWN_SAMPLES = families.DIVIDES_BY_ITS_OWN_SAMPLES
BY_SAMPLES = (
    "so the log looks healthy while training is lost: leave out a rank because it has no samples, "
    "not because its loss is NaN"
)

mistakes = [
    Mistake(
        "the mean of the means",
        f"this is the mean of the ranks' means, which ignores their numbers of samples: {WEIGH}",
        edits={TOTAL: "total = float(loss)", SUMS: "sums = torch.tensor([total, 1.0])"},
        violates="Ranks may have different numbers of samples",
    ),
    Mistake(
        "this rank's own",
        "this is the loss of only this rank, so each rank returns a different number: add up over "
        "the ranks with `dist.all_reduce`",
        answer=lambda loss, samples: loss.item(),
        violates="the mean over the samples of all ranks",
    ),
    Mistake(
        "NaN of an empty rank",
        "one rank has no samples and the loss NaN, and NaN times 0 is NaN: add 0 on such a rank",
        edits={TOTAL: "total = float(loss) * samples"},
        violates="a rank with none has the loss NaN",
    ),
    Mistake(
        "hides a NaN that counts",
        f"the NaN of a rank that has samples comes out as a plain number, {BY_SAMPLES}",
        edits={TOTAL: "total = loss.float().nan_to_num().item() * samples"},
        violates="must come out as NaN",
    ),
    Mistake(
        "leaves out a rank with NaN",
        f"a rank whose loss is NaN is left out, even if it has samples, {BY_SAMPLES}",
        edits={
            TOTAL: "samples = 0 if loss.isnan() else samples\n"
            "total = loss.float().item() * samples if samples else 0.0"
        },
    ),
    Mistake(
        "an empty rank leaves",
        "a rank without samples does not call the all-reduce, and the other waits there forever: "
        "call it on every rank, with 0 for a rank without samples",
        edits={TOTAL: "total = float(loss) * samples", REDUCE: f"if samples:\n    {REDUCE}"},
        violates="which every rank calls",
    ),
    Mistake(
        *families.REDUCES_TO_RANK_0,
        edits={REDUCE: "dist.reduce(sums, dst=0)"},
        violates="the same on each",
    ),
    Mistake(
        "sums in the loss's dtype",
        "the sums are in the dtype of the loss. In fp16, they are rounded to 11 bits and are inf "
        "beyond 65,504: add up in fp32",
        edits={SUMS: "sums = torch.tensor([total, samples], dtype=loss.dtype)"},
        violates="Compute in fp32",
    ),
    Mistake(
        "the sum in the loss's dtype",
        "the sum of the losses is in the dtype of the loss. In fp16, it is rounded to 11 bits and "
        "is inf beyond 65,504: add up in fp32",
        edits={
            TOTAL: "total = loss * samples if samples else torch.zeros_like(loss)",
            SUMS: "sums = [total, torch.tensor(samples)]",
            REDUCE: "for one in sums:\n    dist.all_reduce(one)",
        },
    ),
    Mistake(
        "multiplies in the loss's dtype",
        "`loss * samples` is computed in the dtype of the loss. In fp16, it is rounded to 11 bits "
        "and is inf beyond 65,504: call `.float()` before you multiply",
        edits={TOTAL: "total = (loss * samples).item() if samples else 0.0"},
    ),
    Mistake(
        "the sum of the means",
        f"this is the sum of the ranks' means: {WEIGH}",
        edits={
            TOTAL: "total = float(loss) if samples else 0.0",
            RETURN: "return sums[0].item()",
        },
    ),
    Mistake(
        "divides the means by all samples",
        "`loss` is already a mean over this rank's samples: add up `loss * samples` over the ranks",
        edits={TOTAL: "total = float(loss) if samples else 0.0"},
    ),
    *(
        Mistake(f"{OWN}{how}", OWN_SAMPLES, edits={RETURN: f"return {mean}"})
        for how, mean in {
            "": "(sums[0] / samples).item()",
            ", in Python": "sums[0].item() / samples",
            ", or returns 0": "(sums[0] / samples).item() if samples else 0.0",
        }.items()
    ),
    Mistake(
        "returns the sum",
        "this is the sum over all samples: divide by their number, {total}",
        edits={RETURN: "return sums[0].item()"},
    ),
]

mean_loss = Exercise(
    card,
    right,
    cases,
    mistakes,
    tolerance=1e-4,
    messages={
        WEIGHTS: f"{{case}}, your {{number}} is the mean of the ranks' means, which ignores "
        f"their numbers of samples: {WEIGH}"
    },
)
