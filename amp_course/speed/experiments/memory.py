"""Memory that malloc hands back to the system after a step,
and that the next step has to ask for again, page by page.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from amp_course.kit.children import ChildError, run_python
from amp_course.kit.measure import CpuWait, Timing, busy_text, seconds_text
from amp_course.kit.models import SimpleNet
from amp_course.speed.experiments.finding import Finding
from amp_course.speed.experiments.interleaved import sentence
from amp_course.speed.experiments.workbench import drawn, seeded, training
from amp_course.speed.faults import CURE, page_faults, seconds_per_fault

_WIDTH, _BATCH = 1024, 128  # weights and gradients of some megabytes, as malloc gives back


@dataclass(frozen=True)
class Heap:
    """What one process saw: seconds a step, pages that the system handed out a step,
    and seconds for one of them.
    """

    timing: Timing
    pages: float
    seconds_per_page: float

    @property
    def share(self) -> float:
        """The share of a step that goes into new pages."""
        return self.pages * self.seconds_per_page / self.timing.median

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers."""
        return {
            "seconds": list(self.timing.samples),
            "pages": self.pages,
            "seconds_per_page": self.seconds_per_page,
            "share": self.share,
            "waited": self.timing.waited,
        }


@dataclass(frozen=True, repr=False)
class FreedMemory(Finding):
    """A step in processes of its own: with malloc as it is, and with malloc told to keep what is
    freed.

    The processes cannot take turns within a round, so what is compared is the price of the pages,
    which each of them counts.
    error: why there is no measurement; else ""
    """

    usual: Heap | None
    kept: Heap | None
    error: str = ""

    title = "Memory handed back to the system"

    @property
    def claim(self) -> str:
        """Compare the two processes."""
        if self.usual is None or self.kept is None:
            return sentence(f"this cannot be shown here: {self.error}")
        pages = (f"{heap.pages:,.0f}" for heap in (self.usual, self.kept))
        usual, kept = (
            f"with malloc as it is, the system hands out {next(pages)} new pages a step",
            next(pages),
        )
        if busy := busy_text(self.usual.timing.waited, self.kept.timing.waited):
            return sentence(
                f"{usual}; told to keep its memory, {kept}", f"what do they cost? {busy}"
            )
        return sentence(
            f"{usual}, which take {seconds_text(self.usual.pages * self.usual.seconds_per_page)} "
            f"of its {seconds_text(self.usual.timing.median)}, or {self.usual.share:.0%}; told to "
            f"keep its memory, {kept}, or {self.kept.share:.0%}",
            "where memory lies on the heap decides this, so it changes from run to run",
            f"the fix is in the environment, before Python starts: `{CURE}`",
        )


def freed_memory(*, seconds: float = 1.0) -> FreedMemory:
    """Train one net in two new processes, one of them with the fix in its environment; takes their
    start as well.

    It is glibc's malloc that does this, so on other systems there is nothing to see, and the
    finding says so.
    """
    if not sys.platform.startswith("linux"):
        return FreedMemory(None, (), None, None, "it is a habit of glibc, the C library of Linux")
    fix = dict(one.split("=", 1) for one in CURE.split())
    plain = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    code = f"from {__name__} import train_and_count; train_and_count({seconds / 2})"
    try:
        usual, kept = (_heap(run_python(code, environment=each)) for each in (plain, plain | fix))
    except ChildError as error:
        return FreedMemory(None, (), None, None, str(error))
    return FreedMemory(None, (), usual, kept)


def _heap(printed: str) -> Heap:
    seconds, waited, *rest = json.loads(printed)
    return Heap(Timing(tuple(seconds), waited), *rest)


def train_and_count(seconds: float) -> None:
    """Train three linear layers for some seconds; print as JSON the seconds of each step, and more.

    The share of the time spent waiting for a CPU, the pages of a step, and the seconds of a page.
    """
    torch.set_num_threads(1)
    cpu = torch.device("cpu")
    x, y = (drawn(_BATCH, _WIDTH, device=cpu, seed=seed) for seed in (1, 2))
    step = training(seeded(partial(SimpleNet, _WIDTH), cpu), x, y)
    for _ in range(3):
        step()
    taken: list[float] = []
    pages: list[int] = []
    ends = time.perf_counter() + seconds
    with CpuWait() as wait:
        while time.perf_counter() < ends or len(taken) < 5:
            before, started = page_faults(), time.perf_counter()
            step()
            taken.append(time.perf_counter() - started)
            pages.append(page_faults() - before)
    print(json.dumps([taken, wait.share, statistics.mean(pages), seconds_per_fault()]))
