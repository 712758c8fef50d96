"""Take plain and recorded steps in turn, and keep the numbers alone.

subtle: the records are let go at once. Python's garbage collector looks through every living object
        now and then, and the next
steps would pay for half a million of ours.
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
from amp_course.speed.faults import page_faults

# steps that are not timed, after recorded ones: short steps need some to be as fast as usual again
_WARM = 8
_SMALL_OPS = 300  # in the record from which the price of one call is read
_PROBE = 0.01  # seconds


@dataclass
class Rounds:
    """What the steps so far gave, on one device.

    launch:   nanoseconds of the smallest op, as the profiler sees it
    plain:    seconds of each step without any recording; faults: pages that it was handed
    wait:     how long the process waited for a CPU during those
    workers:  processes that a loader prepared batches in
    clock:    seconds of these stretches; ran, worked: how long this process and the workers ran on
              a CPU meanwhile
    recorded: seconds of each recorded step; ops: how many it called
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
        """Take so many plain steps, after a few that are not timed, then so many recorded ones."""
        # More threads than cores wait for each other, which says nothing of other programs: then
        # a single thread tries how long it has to wait.
        crowded = torch.get_num_threads() > usable_cores()
        before = time.perf_counter(), time.process_time(), worker_seconds()
        with nullcontext() if crowded else self.wait:
            # what was recorded before has filled the caches
            for _ in range(min(plain // 2, _WARM)):
                _whole(self.run, self.device)
            seconds, faults = plain_steps(self.run, self.device, plain)
        self.clock += time.perf_counter() - before[0]
        self.ran += time.process_time() - before[1]
        self.worked += worker_seconds() - before[2]
        self.workers = max(self.workers, len(multiprocessing.active_children()))
        if crowded:
            with self.wait:
                _keep_busy(_PROBE)
        self.plain += seconds
        self.faults += faults
        samples: list[Sample] = []
        with sampled(samples):
            records = record_steps(lambda: _whole(self.run, self.device), recorded, self.device)
        time_lines(records, samples, self.lines)
        for record in records:
            self.kinds.append(sort_step(record, self.launch))
            self.recorded.append((record.main.end - record.main.start) / 1e9)
            ops, kernels = _count(record)
            self.ops.append(ops)
            self.saw_kernels = self.saw_kernels or kernels > 0

    @property
    def timing(self) -> Timing:
        return Timing(tuple(self.plain), self.wait.share)

    @property
    def busy(self) -> str:
        """Why nothing can be told from the times: the loader's workers or other programs; or ""."""
        cores = usable_cores()
        most = cores * self.clock
        others = max(0.0, most - self.ran - self.worked)  # at most: a core may have been idle
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


def plain_steps(run: Runner, device: torch.device, steps: int) -> tuple[list[float], list[int]]:
    """Return the seconds of some steps, from idle to idle device, and their new pages."""
    seconds, faults = [], []
    for _ in range(steps):
        synchronize(device)
        before, start = page_faults(), time.perf_counter()
        _whole(run, device)
        seconds.append(time.perf_counter() - start)
        faults.append(page_faults() - before)
    return seconds, faults


def worker_seconds() -> float:
    """Return how long this process's workers ran on a CPU so far, those that have ended too."""
    taken = 0.0
    for child in multiprocessing.active_children():  # which also waits for those that have ended
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
    """Return the nanoseconds of the smallest op, as the profiler sees it."""
    one = torch.ones(1, device=device)

    def calls() -> None:
        for _ in range(_SMALL_OPS):
            one.add_(0.0)

    record = record_steps(calls, 1, device)[0].main
    return int(statistics.median(child.own for child in record.children)) if record.children else 0


def _whole(run: Runner, device: torch.device) -> None:
    run()
    synchronize(device)


def _fitted(times: dict[str, float], seconds: float) -> dict[str, float]:
    """Make kinds add up to the plain step: what recording adds, it adds to the launches."""
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
