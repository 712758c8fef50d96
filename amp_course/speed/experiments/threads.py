"""Threads that wait for each other: more of them than cores,
and next to workers that want cores too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import torch
from torch.utils.data import Dataset

from amp_course.kit.hardware import usable_cores
from amp_course.kit.models import SimpleNet
from amp_course.loop.recipe import FP32
from amp_course.speed.experiments.datasets import AugmentedDigits
from amp_course.speed.experiments.finding import PUBLISHED, Finding
from amp_course.speed.experiments.interleaved import compare, sentence
from amp_course.speed.experiments.loading import classifier, open_loader, read
from amp_course.speed.experiments.workbench import drawn, seeded, training
from amp_course.speed.experiments.workers import workers_text

_CROWDED = (
    "other programs use these cores too, or you have fewer of them than the system shows (a "
    "container's limit): one thread that waits for a core holds up the whole op"
)


@dataclass(frozen=True, repr=False)
class Threads(Finding):
    """A step on one thread, on one for each core, and on many."""

    cores: int
    many: int

    title = "Too many threads"

    @property
    def claim(self) -> str:
        """Say what more threads than cores cost, and whether threads help at all."""
        assert self.comparison is not None
        told = [f"this process may use {'one core' if self.cores == 1 else f'{self.cores} cores'}"]
        for threads in dict.fromkeys((self.cores, self.many)):
            if threads > 1:
                name = _threads(threads)
                told.append(self.comparison.tell(name, "1 thread", than="one", plural=True))
                if (
                    threads == self.cores
                    and self.comparison.ratio(name, "1 thread").verdict == "slower"
                ):
                    told.append(_CROWDED)
        fix = (
            "the fix is `torch.set_num_threads`, or OMP_NUM_THREADS in the environment: never "
            "more than the cores you have"
        )
        return sentence(*told, fix)


def too_many_threads(*, seconds: float = 2.0, many: int | None = None) -> Threads:
    """Train three linear layers on the CPU with different numbers of threads;
    the number of before is put back.
    """
    cpu, cores = torch.device("cpu"), usable_cores()
    many = many or cores * (4 if cores <= 8 else 2)
    model = seeded(partial(SimpleNet, 512), cpu)
    x, y = (drawn(128, 512, device=cpu, seed=seed) for seed in (1, 2))
    sides = {
        _threads(count): _on_threads(training(model, x, y), count)
        for count in dict.fromkeys((1, cores, many))
    }
    before = torch.get_num_threads()
    try:
        crowd = [side for side in sides if side != _threads(1)]
        comparison = compare(sides, seconds=seconds, single=False, crowded=crowd)
        return Threads(comparison, (PUBLISHED["threads"],), cores, many)
    finally:
        torch.set_num_threads(before)


def _threads(count: int) -> str:
    return f"{count} thread{'s' * (count > 1)}"


def _on_threads(step: Callable[[], object], threads: int) -> Callable[[], object]:
    def side() -> object:
        if torch.get_num_threads() != threads:  # once a block
            torch.set_num_threads(threads)
        return step()

    return side


@dataclass(frozen=True, repr=False)
class ThreadsAndWorkers(Finding):
    """One training on the CPU, by the number of torch's threads and of workers. inside:
    torch's threads within a worker.
    """

    inside: int

    title = "Threads and workers"

    @property
    def claim(self) -> str:
        """Name the fastest setting, and compare it with the plainest."""
        assert self.comparison is not None
        base = next(iter(self.comparison.seconds))
        ratio = self.comparison.ratio
        best = max(self.comparison.seconds, key=lambda side: ratio(side, base).median)
        worst = min(self.comparison.seconds, key=lambda side: ratio(side, base).median)
        told = [
            self.comparison.tell(side, base, who=f"the loop with {side}", than=f"one with {base}")
            for side in dict.fromkeys((best, worst))
            if self.comparison.ratio(side, base).verdict != "same"
        ]
        return sentence(
            *(told or [f"no setting differs clearly from {base}"]),
            f"a worker computes on {_threads(self.inside)}, which PyTorch sets; the cores that "
            f"workers leave are for the step",
        )


def threads_and_workers(
    threads: Sequence[int] = (1, 2), workers: Sequence[int] = (0, 2), *, seconds: float = 2.0
) -> ThreadsAndWorkers:
    """Train on augmented digits with each number of threads and workers in turn;
    the number of threads is put back.
    """
    cpu, dataset, before = torch.device("cpu"), AugmentedDigits(32, 32), torch.get_num_threads()
    with ExitStack() as stack:
        stack.callback(torch.set_num_threads, before)
        sides = {}
        for count in workers:
            loader = stack.enter_context(open_loader(dataset, 16, count))
            for number in threads:
                name = f"{_threads(number)} and {workers_text(count)}"
                sides[name] = _on_threads(partial(read, loader, classifier(512, FP32, cpu)), number)
        comparison = compare(sides, steps=1, seconds=seconds, single=False)
        found: list[int] = []
        asked = stack.enter_context(open_loader(_Threads(), None, 1))
        read(asked, lambda item: found.append(int(item)))
    return ThreadsAndWorkers(comparison, (PUBLISHED["threads"],), found[0])


class _Threads(Dataset[int]):
    """One item: how many threads torch uses where it is loaded."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> int:
        return torch.get_num_threads()
