"""Price ops by timing each alone on this machine, to predict what a step would take from the list
of its ops; and time the step itself.

Each op of the list is called again on new tensors of the same shapes, strides and dtypes; identical
ops are timed once. Between two calls of an op come calls of the others, as in a step, so that it
does not find its own data in the cache. On a GPU the price is the time of its kernel: the CPU
queues ops meanwhile.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch

from amp_course.kit.measure import Timing, clock
from amp_course.speed.counting import OpCall, OpCounter, Replay
from amp_course.speed.faults import clock_and_faults, seconds_per_fault

_HEAD_START = 1_000_000  # cycles, about half a millisecond: longer than Python needs to queue an op


@dataclass(frozen=True)
class PricedCall:
    """An op and the seconds that it took alone; one that could not be called again costs 0."""

    call: OpCall
    seconds: float


class Pricer:
    """Times every op that was counted; the price is its fastest call in all runs."""

    def __init__(self, counter: OpCounter, device: torch.device) -> None:
        self.counter, self.device = counter, device
        self._keys = [_key(replay) for replay in counter.replays]
        distinct = dict(zip(self._keys, counter.replays, strict=True))
        self._calls = {key: replay.on_new_tensors() for key, replay in distinct.items()}
        self._best: dict[Any, float] = {}

    def run(self, seconds: float) -> None:
        """Time each op at least once, for about `seconds` in all."""
        with torch.no_grad(), torch.autocast(self.device.type, enabled=False):
            if not self._best:
                self._round()  # warms up
                self._best.clear()
            ends = time.perf_counter() + seconds
            self._round()
            while time.perf_counter() < ends:
                self._round()

    def _round(self) -> None:
        for key, call in [*self._calls.items()]:
            try:
                seconds = _time(call, self.device)
            except (RuntimeError, TypeError, ValueError, IndexError):
                del self._calls[key]
            else:
                self._best[key] = min(self._best.get(key, seconds), seconds)

    def prices(self) -> tuple[PricedCall, ...]:
        """Return the price of each op, in the order of the step."""
        return tuple(
            PricedCall(call, self._best.get(key, 0.0))
            for call, key in zip(self.counter.calls, self._keys, strict=True)
        )


def _key(replay: Replay) -> Any:
    return (str(replay.func), repr(replay.args), repr(replay.kwargs))


def _time(call: Callable[[], Any], device: torch.device) -> float:
    if device.type == "cuda":
        # The GPU sleeps until the op is queued, so the events time the op without its launch.
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(_HEAD_START)
        begin.record()
        call()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3
    return clock(call, device)


@dataclass(frozen=True)
class Side:
    """One side of a comparison: the times of its steps, the seconds of a step that go into new
    pages, and the prices of its ops.

    priced:   forward and backward; the optimizer's ops are the same on both sides
    queueing: the seconds that the CPU takes to queue the step's ops on a GPU; 0 on a CPU
    launch:   the same for one small op
    """

    timing: Timing
    fault_seconds: float
    priced: tuple[PricedCall, ...] = field(repr=False)
    queueing: float = 0.0
    launch: float = 0.0

    @property
    def seconds(self) -> float:
        """The fastest step, as prices are those of the fastest calls: other programs can only
        make one slower.
        """
        return min(self.timing.samples)

    def priced_seconds(self, kind: str | None = None) -> float:
        """Return the price of all ops, or of those of a kind."""
        return sum(one.seconds for one in self.priced if kind in (None, one.call.kind))


class TimedStep:
    """A step that is timed block by block, and whose ops are priced.

    precision: makes the context that it runs in, such as fp32 without TF32
    """

    def __init__(
        self,
        step: Callable[[], object],
        precision: Callable[[], AbstractContextManager[Any]],
        device: torch.device,
        counter: OpCounter,
    ) -> None:
        self.pricer = Pricer(counter, device)
        self.step, self.precision, self.device = step, precision, device
        self.seconds: list[float] = []
        self.faults: list[int] = []
        self.queueing: list[float] = []
        self._step()  # the first one allocates and loads

    def block(self, steps: int, ends: float) -> None:
        """Take a step untimed, then `steps` timed; stop after `ends` once two have been timed."""
        if self._is_done(ends):
            return
        if not self.seconds or statistics.median(self.seconds) < 0.2:
            self._step()  # brings this side's weights back into the caches
        for _ in range(steps):
            seconds, faults = clock_and_faults(self._step, self.device)
            self.seconds.append(seconds)
            self.faults.append(faults)
            if self._is_done(ends):
                return

    def _is_done(self, ends: float) -> bool:
        return len(self.seconds) >= 2 and time.perf_counter() > ends

    def price(self, seconds: float) -> None:
        """Price the step's ops in the step's own precision: with TF32 or without."""
        with self.precision():
            self.pricer.run(seconds)

    def side(self, waited: float | None, launch: float) -> Side:
        timing, kind = Timing(tuple(self.seconds), waited), self.device.type
        faults = statistics.median(self.faults) * seconds_per_fault() if kind == "cpu" else 0.0
        queueing = min(self.queueing) if kind == "cuda" else 0.0
        return Side(timing, faults, self.pricer.prices(), queueing, launch)

    def _step(self) -> None:
        start = time.perf_counter()
        with self.precision():
            self.step()
        self.queueing.append(time.perf_counter() - start)
