"""Take plain and recorded steps in turn, and keep only the numbers.

subtle: the records are deleted at once. Python's garbage collector visits every living object now
        and then, and half a million of ours would slow down the next steps.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch

from amp_course.kit.hardware import usable_cores
from amp_course.kit.measure import CpuWait, Timing, synchronize
from amp_course.speed.explain.kinds import KINDS, LAUNCH, sort_step
from amp_course.speed.explain.recording import StepRecord, record_steps
from amp_course.speed.explain.running import Runner
from amp_course.speed.explain.sampling import LineTimes, Sample, sampled, time_lines
from amp_course.speed.faults import clock_and_faults

# untimed steps after recorded ones, until short steps are as fast as usual again
_WARM = 8
_SMALL_OPS = 300  # recorded to find the price of a call
_PROBE = 0.01  # seconds


@dataclass
class Rounds:
    """The numbers of the steps so far, on one device.

    launch:   nanoseconds of the smallest op under the profiler
    plain:    seconds of each step without recording; faults: its new pages
    wait:     how long the process waited for a CPU during those
    workers:  the number of a loader's processes
    clock:    seconds of the plain steps together; ran, worked: how long this process and the
              workers ran on a CPU meanwhile
    recorded: seconds of each recorded step; ops: their number
    kinds:    of each recorded step, kind → nanoseconds
    """

    run: Runner
    device: torch.device
    launch: int
    plain: list[float] = field(default_factory=list)
    faults: list[int] = field(default_factory=list)
    wait: CpuWait = field(default_factory=CpuWait)
    workers: int = 0
    clock: float = 0.0
    ran: float = 0.0
    worked: float = 0.0
    recorded: list[float] = field(default_factory=list)
    ops: list[int] = field(default_factory=list)
    kinds: list[dict[str, int]] = field(default_factory=list)
    lines: LineTimes = field(default_factory=LineTimes)
    saw_kernels: bool = False

    def take(self, plain: int, recorded: int) -> None:
        """Take plain steps, after a few that are not timed, then recorded ones."""
        # More threads than cores wait for each other, which says nothing about other programs:
        # then a single thread measures how long it waits.
        crowded = torch.get_num_threads() > usable_cores()
        before = time.perf_counter(), time.process_time(), worker_seconds()
        with nullcontext() if crowded else self.wait:
            for _ in range(min(plain // 2, _WARM)):
                self.run()
            steps = [clock_and_faults(self.run, self.device) for _ in range(plain)]
        self.clock += time.perf_counter() - before[0]
        self.ran += time.process_time() - before[1]
        self.worked += worker_seconds() - before[2]
        self.workers = max(self.workers, len(multiprocessing.active_children()))
        if crowded:
            with self.wait:
                _keep_busy(_PROBE)
        self.plain += (seconds for seconds, _ in steps)
        self.faults += (faults for _, faults in steps)
        samples: list[Sample] = []
        with sampled(samples):
            records = record_steps(self._whole_step, recorded, self.device)
        time_lines(records, samples, self.lines)
        for record in records:
            self.kinds.append(sort_step(record, self.launch))
            self.recorded.append((record.main.end - record.main.start) / 1e9)
            ops, kernels = _count(record)
            self.ops.append(ops)
            self.saw_kernels = self.saw_kernels or kernels > 0

    def _whole_step(self) -> None:
        self.run()
        synchronize(self.device)

    @property
    def timing(self) -> Timing:
        return Timing(tuple(self.plain), self.wait.share)

    @property
    def busy(self) -> str:
        """Why the times show nothing, because of the loader's workers or other programs; or ""."""
        cores = usable_cores()
        most = cores * self.clock
        # at most, since a core may have been idle
        others = max(0.0, most - self.ran - self.worked)
        if not self.timing.busy or self.worked <= others:
            return self.timing.busy
        who = f"{self.workers} workers compete" if self.workers > 1 else "worker competes"
        return (
            f"The loader's {who} with the training for the {cores} core{'s' if cores > 1 else ''}: "
            f"one of them waited for a CPU {self.wait.share:.0%} of the time. Preparing batches "
            f"had {self.worked / most:.0%} of the cores, and other programs {others / most:.0%} at "
            f"most. "
            "Use fewer workers, or make the batches cheaper (decode or resize once, beforehand), "
            "and run this again."
        )

    def times(self) -> dict[str, float]:
        """Return kind → seconds of a step, largest first; they add up to the median plain step."""
        medians = {kind: statistics.median(one[kind] for one in self.kinds) / 1e9 for kind in KINDS}
        times = _fitted(medians, self.timing.median)
        return dict(sorted(times.items(), key=lambda pair: pair[1], reverse=True))


def worker_seconds() -> float:
    """Return how long this process's workers have run on a CPU, including those that have ended."""
    taken = 0.0
    for child in multiprocessing.active_children():  # also waits for those that have ended
        try:
            with open(f"/proc/{child.pid}/schedstat", encoding="ascii") as file:
                taken += int(file.read().split()[0]) / 1e9
        except OSError:  # it has just ended, or this is not Linux
            continue
    ended = os.times()
    return taken + ended.children_user + ended.children_system


def _keep_busy(seconds: float) -> None:
    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends:
        pass


def price_of_a_call(device: torch.device) -> int:
    """Return the nanoseconds of the smallest op under the profiler."""
    one = torch.ones(1, device=device)

    def calls() -> None:
        for _ in range(_SMALL_OPS):
            one.add_(0.0)

    record = record_steps(calls, 1, device)[0].main
    return int(statistics.median(child.own for child in record.children)) if record.children else 0


def _fitted(times: dict[str, float], seconds: float) -> dict[str, float]:
    """Make kinds add up to the plain step; the time that recording adds is taken off LAUNCH."""
    whole = sum(times.values())
    others = whole - times[LAUNCH]
    if others < seconds < whole:
        return {**times, LAUNCH: seconds - others}
    return {kind: value * seconds / whole for kind, value in times.items()} if whole else times


def _count(record: StepRecord) -> tuple[int, int]:
    """Return how many ops a step called, and how many kernels they started on an accelerator."""
    stack, ops, kernels = [record.main, *record.others], 0, 0
    while stack:
        op = stack.pop()
        ops += op.name.startswith("aten::")
        kernels += len(op.kernels)
        stack += op.children
    return ops, kernels
