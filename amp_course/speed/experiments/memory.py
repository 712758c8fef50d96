"""Memory that malloc gives back to the system after a step, and that the next step gets again, page
by page.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from dataclasses import dataclass

import torch

from amp_course.kit.children import ChildError, run_python
from amp_course.kit.measure import CpuWait, Timing, busy_text, seconds_text
from amp_course.speed.experiments.finding import Finding
from amp_course.speed.experiments.interleaved import sentences
from amp_course.speed.experiments.workbench import three_layers
from amp_course.speed.faults import CURE, clock_and_faults, seconds_per_fault

_WIDTH, _BATCH = 1024, 128  # tensors of some megabytes, which malloc gives back


@dataclass(frozen=True)
class Heap:
    """What one process measured: its steps, the new pages of a step, and the seconds of a page."""

    timing: Timing
    pages: float
    seconds_per_page: float

    @property
    def seconds(self) -> float:
        """The seconds of a step that go into new pages."""
        return self.pages * self.seconds_per_page

    @property
    def share(self) -> float:
        """The same as a share of the step."""
        return self.seconds / self.timing.median


def freed_memory(*, seconds: float = 1.0) -> Finding:
    """Train one net in two new processes: with malloc as it is, and with one that keeps what is
    freed; `seconds` is without their start.

    Only glibc's malloc gives memory back, so on other systems the finding says that there is
    nothing to see. Two processes cannot take turns within a round, so the prices of the pages are
    compared, which each of them counts.
    """
    title = "Memory handed back to the system"
    if not sys.platform.startswith("linux"):
        error = "it is a habit of glibc, the C library of Linux"
        return Finding(title, None, f"This cannot be shown here: {error}.")
    fix = dict(one.split("=", 1) for one in CURE.split())
    plain = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    code = f"from {__name__} import train_and_count; train_and_count({seconds / 2})"
    try:
        heaps = [_heap(run_python(code, environment=each)) for each in (plain, plain | fix)]
    except ChildError as error:
        return Finding(title, None, sentences(f"this cannot be shown here: {error}"))
    return Finding(title, None, describe_freed_memory(*heaps))


def describe_freed_memory(usual: Heap, fixed: Heap) -> str:
    """Compare the two processes."""
    usual_words = f"with malloc as it is, the system hands out {usual.pages:,.0f} new pages a step"
    fixed_words = f"told to keep its memory, {fixed.pages:,.0f}"
    if busy := busy_text(usual.timing.waited, fixed.timing.waited):
        return sentences(f"{usual_words}; {fixed_words}", f"what do they cost? {busy}")
    return sentences(
        f"{usual_words}, which take {seconds_text(usual.seconds)} of its "
        f"{seconds_text(usual.timing.median)}, or {usual.share:.0%}; {fixed_words}, or "
        f"{fixed.share:.0%}",
        "where memory lies on the heap decides this, so it changes from run to run",
        f"the fix is in the environment, before Python starts: `{CURE}`",
    )


def _heap(printed: str) -> Heap:
    seconds, waited, *rest = json.loads(printed)
    return Heap(Timing(tuple(seconds), waited), *rest)


def train_and_count(seconds: float) -> None:
    """Train three linear layers for some seconds, and print as JSON: the seconds of each step, the
    share of time spent waiting for a CPU, the pages of a step, and the seconds of a page.
    """
    torch.set_num_threads(1)
    step = three_layers(_WIDTH, _BATCH, torch.device("cpu"))
    for _ in range(3):
        step()
    steps: list[tuple[float, int]] = []
    ends = time.perf_counter() + seconds
    with CpuWait() as wait:
        while time.perf_counter() < ends or len(steps) < 5:
            steps.append(clock_and_faults(step, "cpu"))
    taken, pages = zip(*steps, strict=True)
    print(json.dumps([taken, wait.share, statistics.mean(pages), seconds_per_fault()]))
