"""The settings of a DataLoader, one by one: num_workers, persistent_workers, prefetch_factor,
threads, pin_memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils.data import Dataset

from amp_course.kit.hardware import usable_cores
from amp_course.kit.measure import CpuWait, busy_text, seconds_text
from amp_course.speed.experiments.datasets import AugmentedDigits, SlowSource
from amp_course.speed.experiments.finding import PUBLISHED, Finding
from amp_course.speed.experiments.interleaved import compare, sentence
from amp_course.speed.experiments.loading import open_loader, read
from amp_course.speed.experiments.workbench import drawn

CPU = torch.device("cpu")


def workers_text(count: int) -> str:
    """Write a number of workers. Example: 0 → "no workers", 1 → "1 worker" """
    return f"{count or 'no'} worker{'' if count == 1 else 's'}"


@dataclass(frozen=True, repr=False)
class WorkerCounts(Finding):
    """One epoch of a data set, read by different numbers of workers. cores:
    that this process may use.
    """

    counts: tuple[int, ...]
    batches: int

    title = "num_workers"

    @property
    def claim(self) -> str:
        """Compare each number of workers with the first."""
        assert self.comparison is not None
        base = workers_text(self.counts[0])
        told = [
            self.comparison.tell(
                workers_text(count),
                base,
                who=f"an epoch with {workers_text(count)}",
                than=f"one with {base}",
            )
            for count in self.counts[1:]
        ]
        if 1 in self.counts[1:]:
            told.append(
                "no training runs alongside here, so a single worker only moves the work to "
                "another process"
            )
        if (
            self.counts[-1] > 1
            and self.comparison.ratio(workers_text(self.counts[-1]), base).verdict != "faster"
        ):
            told.append("more workers help only where there are free cores for them")
        ratio = self.comparison.ratio
        best = max(self.counts, key=lambda count: ratio(workers_text(count), base).median)
        rate = self.batches / self.comparison.timing(workers_text(best)).median
        return sentence(
            *told, f"the most here: {rate:,.0f} batches a second, with {workers_text(best)}"
        )


def worker_counts(
    dataset: Dataset[Any] | None = None,
    counts: Sequence[int] = (0, 1, 2),
    *,
    batch_size: int = 16,
    seconds: float = 2.0,
    method: str | None = None,
) -> WorkerCounts:
    """Read a data set, epoch by epoch, with each number of workers in turn; all of them start
    before the clock does.

    dataset: of some 100 items, or the rounds get long; augmented digits if None
    method:  how workers start: "fork", "spawn", "forkserver"; None is Python's own choice
    """
    dataset = AugmentedDigits(96) if dataset is None else dataset
    with ExitStack() as stack:
        loaders = {
            workers_text(count): stack.enter_context(
                open_loader(
                    dataset, batch_size, count, multiprocessing_context=method if count else None
                )
            )
            for count in counts
        }
        sides = {name: partial(read, loader) for name, loader in loaders.items()}
        batches = max(map(len, loaders.values()))
        crowded = [workers_text(count) for count in counts if count > usable_cores()]
        comparison = compare(sides, steps=1, seconds=seconds, crowded=crowded)
        return WorkerCounts(comparison, (PUBLISHED["workers"],), tuple(counts), batches)


@dataclass(frozen=True, repr=False)
class StartUp(Finding):
    """Seconds until the first batch is there: in a first epoch,
    and in a second one with workers that stayed, or did not.
    """

    workers: int
    method: str
    first: float
    again: float
    persistent: float
    waited: float | None = None

    title = "persistent_workers"

    @property
    def busy(self) -> str:
        """Why nothing can be told from the times; "" on a quiet machine."""
        return busy_text(self.waited)

    @property
    def claim(self) -> str:
        """Say what starting workers costs, and what keeping them saves."""
        return sentence(
            f"with {workers_text(self.workers)}, started by {self.method}, the first batch takes "
            f"{seconds_text(self.first)}",
            f"in the second epoch it takes {seconds_text(self.again)} if the workers start again, "
            f"and {seconds_text(self.persistent)} with `persistent_workers=True`",
        )


def start_up(
    dataset: Dataset[Any] | None = None, workers: int = 2, *, method: str | None = None
) -> StartUp:
    """Time the first batch of two epochs, with and without persistent workers.

    Spawned workers, the default of Windows and macOS, take seconds: each imports torch again. In a
    script, they need your code below `if __name__ == "__main__":`.
    """
    dataset = SlowSource(4, 0.0) if dataset is None else dataset
    taken, wait = {}, CpuWait()
    for persistent in (False, True):
        with (
            open_loader(
                dataset, 1, workers, persistent=persistent, multiprocessing_context=method
            ) as loader,
            wait,
        ):
            taken[persistent] = [_first_batch(loader) for _ in range(2)]
    return StartUp(
        None,
        (),
        workers,
        method or str(torch.multiprocessing.get_start_method()),
        taken[False][0],
        taken[False][1],
        taken[True][1],
        wait.share,
    )


def _first_batch(loader: Any) -> float:
    seen: list[float] = []
    started = time.perf_counter()
    read(loader, lambda batch: seen.append(time.perf_counter()))
    return seen[0] - started


@dataclass(frozen=True, repr=False)
class Prefetch(Finding):
    """A loop on a source that pauses now and then, with different numbers of batches prepared
    ahead.
    """

    factors: tuple[int, ...]

    title = "prefetch_factor"

    @property
    def claim(self) -> str:
        """Compare the largest factor with the smallest."""
        assert self.comparison is not None
        few, many = _ahead(self.factors[0]), _ahead(self.factors[-1])
        told = self.comparison.tell(many, few, who=f"the loop with {many}", than=f"one with {few}")
        verdict = self.comparison.ratio(many, few).verdict
        why = {
            "faster": "what lies ready bridges the pauses of the source",
            "same": "the pauses are too short, or the loop too slow or too fast, for a store of "
            "batches to matter",
            "slower": "a store of batches costs memory and cannot replace a faster source",
        }[verdict]
        return sentence(
            told,
            why,
            "a store helps against pauses only: a source that is too slow on average empties any "
            "store",
        )


def prefetch(factors: Sequence[int] = (1, 2, 8), *, seconds: float = 2.5) -> Prefetch:
    """Read a source that pauses, one worker, and work on each batch a little longer than an average
    batch takes to come.
    """
    # 4 ms a batch of 8, and 30 ms more for every fourth
    dataset = SlowSource(64, 0.0005, pause=0.03, every=32)
    with ExitStack() as stack:
        sides = {
            _ahead(factor): partial(
                read,
                stack.enter_context(open_loader(dataset, 8, 1, prefetch_factor=factor)),
                _work_for(0.014),
            )
            for factor in factors
        }
        return Prefetch(compare(sides, steps=1, seconds=seconds), (), tuple(factors))


def _ahead(factor: int) -> str:
    return f"{factor} batch{'es' if factor > 1 else ''} ahead"


def _work_for(seconds: float) -> Callable[[Any], None]:
    """Return a step that takes a given time on a CPU of any speed:
    what is compared is the loader.
    """
    matrix = drawn(64, 64, device=CPU)

    def step(_: Any) -> None:
        ends = time.perf_counter() + seconds
        while time.perf_counter() < ends:
            matrix @ matrix

    return step
