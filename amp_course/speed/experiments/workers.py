"""The first setting of a DataLoader to try: num_workers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from torch.utils.data import Dataset

from amp_course.kit.hardware import usable_cores
from amp_course.kit.markup import counted
from amp_course.speed.experiments.datasets import AugmentedDigits
from amp_course.speed.experiments.finding import Finding
from amp_course.speed.experiments.interleaved import Comparison, compare, sentences
from amp_course.speed.experiments.loading import open_loader, read


def workers_text(count: int) -> str:
    """Write a number of workers. Example: 0 → "no workers", 1 → "1 worker" """
    return counted(count, "worker") if count else "no workers"


def worker_counts(
    dataset: Dataset[Any] | None = None, counts: Sequence[int] = (0, 1, 2), *, seconds: float = 2.0
) -> Finding:
    """Read a data set, epoch by epoch, with each number of workers in turn; all of them start
    before the clock does.

    dataset: of about 100 items, so that rounds are short; augmented digits if None
    """
    dataset = AugmentedDigits(96) if dataset is None else dataset
    with ExitStack() as stack:
        sides = {}
        for count in counts:
            loader = stack.enter_context(open_loader(dataset, 16, count))
            sides[workers_text(count)] = partial(read, loader)
        crowded = [workers_text(count) for count in counts if count > usable_cores()]
        found = compare(sides, steps=1, seconds=seconds, crowded=crowded)
    claim = describe_worker_counts(found, counts, batches=len(loader))
    return Finding("num_workers", found, claim, ("workers",))


def describe_worker_counts(found: Comparison, counts: Sequence[int], batches: int) -> str:
    """Compare each number of workers with the first; batches: in an epoch."""
    base, *others = names = [workers_text(count) for count in counts]
    clauses = [
        found.describe(name, base, who=f"an epoch with {name}", than=f"one with {base}")
        for name in others
    ]
    if 1 in counts[1:]:
        clauses.append(
            "no training runs alongside here, so a single worker only moves the work to another "
            "process"
        )
    if counts[-1] > 1 and found.ratio(names[-1], base).verdict != "faster":
        clauses.append("more workers help only where there are free cores for them")
    best = max(names, key=lambda name: found.ratio(name, base).median)
    rate = batches / found.timing(best).median
    return sentences(*clauses, f"the most here: {rate:,.0f} batches a second, with {best}")
