"""Time training steps so that the number is true: warmed up, synchronised, many, with their spread.

An accelerator works asynchronously: an op returns when it is queued, not when it is done. So the
clock starts on an idle device and stops once the device is idle again. `time_step` does this around
a function, `StepTimer` inside a training loop, on CUDA by events, for which the loop does not wait.
For single ops use torch.utils.benchmark.

On a machine that other programs keep busy, a time says more about them than about the code. Linux
counts how long each thread waits for a CPU, and `CpuWait` reads that. Code that claims something
from a time calls `too_busy` first.
"""

import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from amp_course.kit.markup import counted

T = TypeVar("T")
Mark = Any  # a moment: seconds on a CPU's clock, or a torch.cuda.Event
TOO_BUSY = "This machine was too busy to tell"
BUSY = 0.2  # share of the time spent waiting for a CPU above which a time proves nothing


def read_waits() -> dict[str, int] | None:
    """Return how long each thread of this process, and each worker process, has waited for a CPU.

    In nanoseconds, by the thread's folder in /proc. A waiting thread is ready to run and has no
    CPU; one that sleeps, or waits for a disk, does not count. None if the system is not Linux, or
    its kernel does not count.
    """
    ran, waits = 0, {}
    try:
        folders = [f"/proc/self/task/{thread}" for thread in os.listdir("/proc/self/task")]
    except OSError:
        return None
    folders += [f"/proc/{child.pid}" for child in multiprocessing.active_children()]
    for folder in folders:
        try:
            with open(f"{folder}/schedstat", encoding="ascii") as file:
                on_cpu, waited, _ = map(int, file.read().split())
        except (OSError, ValueError):  # the thread has ended, or there is no such file
            continue
        ran += on_cpu
        waits[folder] = waited
    return waits if ran else None


class CpuWait:
    """Find the share of the time in its `with` blocks that this process waited for a CPU.

    What counts is the thread that waited the longest, because an op is done when its slowest thread
    is. It may have waited for other programs, or for threads and workers of this one.

    Example: wait = CpuWait(); with wait: train(); wait.share → 0.03, or None if it is not known
    """

    def __init__(self) -> None:
        self._seconds = self._waited = 0.0
        self._known = True

    def __enter__(self) -> "CpuWait":
        self._before, self._began = read_waits(), time.monotonic()
        return self

    def __exit__(self, *details: object) -> None:
        seconds, after, before = time.monotonic() - self._began, read_waits(), self._before
        if before is None or after is None:
            self._known = False
            return
        waits = [waited - before.get(thread, 0) for thread, waited in after.items()]
        self._seconds += seconds
        self._waited += max(waits) / 1e9

    @property
    def share(self) -> float | None:
        """The share so far, between 0 and 1 whatever the clock does."""
        if not self._known or self._seconds <= 0:
            return None
        return min(1.0, max(0.0, self._waited / self._seconds))


def too_busy(*shares: float | None) -> bool:
    """Return True if any of these shares is more than a fifth; None is unknown."""
    return any(share is not None and share > BUSY for share in shares)


def busy_text(*shares: float | None) -> str:
    """Say that a time proves nothing, and why; "" unless `too_busy`."""
    if not too_busy(*shares):
        return ""
    most = max(share or 0.0 for share in shares)
    return (
        f"{TOO_BUSY}: this process waited for a CPU {most:.0%} of the time. Close other programs, "
        "or use fewer threads and workers, and run this again."
    )


def synchronize(device: torch.device | str) -> None:
    """Wait until `device` has done all that was queued; a CPU has nothing queued."""
    device = torch.device(device)
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def clock(work: Callable[[], object], device: torch.device | str, calls: int = 1) -> float:
    """Return the seconds of one of `calls` calls of `work`, from idle device to idle device."""
    synchronize(device)
    start = time.perf_counter()
    for _ in range(calls):
        work()
    synchronize(device)
    return (time.perf_counter() - start) / calls


def best_seconds(
    work: Callable[[], object], device: torch.device | str, *, least: int, budget: float = 0.0
) -> float:
    """Return the seconds of the fastest of `least` calls, and of more as long as `budget` lasts."""
    best, began, calls = float("inf"), time.perf_counter(), 0
    while calls < least or time.perf_counter() - began < budget:
        best, calls = min(best, clock(work, device)), calls + 1
    return best


def order_of_round(names: Iterable[T], number: int) -> list[T]:
    """Return the order in which the sides of a comparison take turns in a round: in twice as many
    rounds as there are sides, each has every place twice.
    """
    order = list(names)
    cycles, shift = divmod(number, len(order))
    order = order[shift:] + order[:shift]
    return order[::-1] if cycles % 2 else order


def _seconds_unit(seconds: float) -> tuple[float, str]:
    for size, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= 0.9995 * size:
            return size, unit
    return 1e-6, "µs"


def three_figures(number: float) -> str:
    """Write a number below 1000 with three figures. Example: 12.345 → "12.3" """
    return f"{number:.{2 if number < 9.995 else 1 if number < 99.95 else 0}f}"


def seconds_text(seconds: float) -> str:
    """Write a time for people, with three figures. Example: 0.01234 → "12.3 ms" """
    size, unit = _seconds_unit(seconds)
    return f"{three_figures(seconds / size)} {unit}"


@dataclass(frozen=True)
class Timing:
    """The times of several steps, in seconds.

    waited: the share of that time in which the process waited for a CPU; None if unknown

    Example: str(Timing((0.012, 0.0123, 0.013))) → "12.3 ms (quartiles 12.2 to 12.7, 3 steps)"
    """

    samples: tuple[float, ...]
    waited: float | None = None

    @property
    def median(self) -> float:
        """The step in the middle, in seconds: unlike the mean, not moved by one slow step."""
        return statistics.median(self.samples)

    @property
    def q1(self) -> float:
        """The first quartile, in seconds: a quarter of the steps were faster."""
        return self._quartiles()[0]

    @property
    def q3(self) -> float:
        """The third quartile, in seconds: a quarter of the steps were slower."""
        return self._quartiles()[2]

    def _quartiles(self) -> list[float]:
        if len(self.samples) == 1:
            return [self.samples[0]] * 3
        return statistics.quantiles(self.samples, n=4, method="inclusive")

    @property
    def busy(self) -> str:
        """Why these times prove nothing; "" on a quiet machine."""
        return busy_text(self.waited)

    def compared_with(self, other: "Timing") -> str:
        """Compare the time of a step with another, as far as this machine can show a difference.

        Example: Timing((0.010, 0.011)).compared_with(Timing((0.020, 0.021))) → "0.51 times as long"
        """
        if busy := busy_text(self.waited, other.waited):
            return busy
        times = f"{self.median / other.median:.2f} times as long"
        if self.q1 <= other.q3 and other.q1 <= self.q3:
            return f"no difference that this machine can show ({times}, and the quartiles overlap)"
        return times

    def __str__(self) -> str:
        size, unit = _seconds_unit(self.median)
        q1, q3 = (three_figures(quartile / size) for quartile in (self.q1, self.q3))
        spread = f"quartiles {q1} to {q3}, " if len(self.samples) > 1 else ""
        steps = counted(len(self.samples), "step")
        busy = f", {self.waited:.0%} of it waiting for a CPU" if self.busy else ""
        return f"{three_figures(self.median / size)} {unit} ({spread}{steps}{busy})"


def time_step(
    step: Callable[[], object],
    *,
    device: torch.device | str,
    warmup: int = 3,
    repeats: int = 20,
    max_seconds: float | None = None,
) -> Timing:
    """Run `step()` `warmup` times, then time `repeats` calls, each from idle device to idle device.

    The warm-up is for what makes the first steps slower: allocating memory, choosing and loading
    kernels. `max_seconds` limits all steps together, warm-up included: a step begins only if it
    would end in time at the pace of the fastest so far. The first one always runs; if the limit
    ends the warm-up, the last step is the sample.

    Raises TypeError for a step that cannot be called.
    Example: time_step(lambda: x @ x, device="cpu").median → 0.0013
    """
    if not callable(step):
        raise TypeError(
            f"step is a {type(step).__name__}, which cannot be called: pass the function itself, "
            "as in time_step(step), not its result, as in time_step(step())."
        )
    taken: list[float] = []
    with CpuWait() as wait:
        while len(taken) < warmup + repeats:
            pace = min(taken[1:], default=0.0)  # the first step is slower than the others
            if taken and max_seconds is not None and sum(taken) + pace > max_seconds:
                break
            taken.append(clock(step, device))
    return Timing(tuple(taken[warmup:] or taken[-1:]), wait.share)


class StepTimer:
    """Time the steps of a training loop from within, at almost no cost.

    `start()` before the step, `stop()` after it, `seconds()` at the end. On CUDA the first two
    queue an event and return; only `seconds()` waits. On a CPU they read the clock; on other
    devices they synchronise first. `waited` is the share of the time, from the first `start()` to
    the first `seconds()`, in which the process waited for a CPU; None if unknown.

    Example: timer = StepTimer("cpu"); timer.start(); train_one_step(); timer.stop();
             timer.seconds() → [0.0163]
    Raises RuntimeError for a `stop()` without `start()`, or a second `start()`.
    """

    def __init__(self, device: torch.device | str) -> None:
        self.device = torch.device(device)
        self._marks: list[tuple[Mark, Mark]] = []
        self._started: Mark | None = None
        self._wait: CpuWait | None = None
        self.waited: float | None = None

    def start(self) -> None:
        if self._started is not None:
            raise RuntimeError(
                "start() twice without stop() between: call stop() at the end of each step."
            )
        if self._wait is None:
            self._wait = CpuWait().__enter__()
        self._started = self._mark()

    def stop(self) -> None:
        if self._started is None:
            raise RuntimeError(
                "stop() without start(): call start() at the beginning of each step."
            )
        self._marks.append((self._started, self._mark()))
        self._started = None

    def wait(self, steps: int) -> None:
        """Wait until a GPU is at most `steps` steps behind the program; does nothing elsewhere."""
        if self.device.type == "cuda" and len(self._marks) > steps:
            self._marks[-1 - steps][1].synchronize()

    def seconds(self) -> list[float]:
        """Return the seconds of each finished step, in order."""
        if self.device.type == "cuda":
            synchronize(self.device)
        if self._wait is not None and self.waited is None:
            self._wait.__exit__()
            self.waited = self._wait.share
        return [_between(start, stop) for start, stop in self._marks]

    def _mark(self) -> Mark:
        if self.device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)
            event.record(torch.cuda.current_stream(self.device))
            return event
        synchronize(self.device)
        return time.perf_counter()


def _between(start: Mark, stop: Mark) -> float:
    if isinstance(start, float) and isinstance(stop, float):
        return stop - start
    return start.elapsed_time(stop) / 1000  # an event's time is in milliseconds
