"""Price ops by timing each alone on this machine: what a step would take, told from the list of its
ops.

Each op of the list is called again on new tensors of the same shapes, strides and dtypes. Ops that
are alike are timed once. Between two calls of an op come calls of the others, as in a step, so that
it does not find its own data in the cache. On a GPU the price is its own time: queueing the op is
the CPU's, and goes on meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from amp_course.kit.measure import clock
from amp_course.speed.counting import OpCall, OpCounter, Replay

_HEAD_START = 1_000_000  # cycles, about half a millisecond: longer than Python needs to queue an op


@dataclass(frozen=True)
class PricedCall:
    """An op and the seconds that it took alone; `error` says why it could not be called again,
    and then it costs 0.
    """

    call: OpCall
    seconds: float
    error: str = ""


class Pricer:
    """Times every op that was counted; the fastest call of each counts, whenever it was."""

    def __init__(self, counter: OpCounter, device: torch.device) -> None:
        self.counter, self.device = counter, device
        kinds: dict[Any, Replay] = {}
        for replay in counter.replays:
            kinds.setdefault(_key(replay), replay)
        self._calls = {key: _callable(replay) for key, replay in kinds.items()}
        self._best: dict[Any, float] = {}
        self._errors: dict[Any, str] = {}

    def run(self, seconds: float) -> None:
        """Time each op at least once, for about `seconds` in all."""
        with torch.no_grad(), torch.autocast(self.device.type, enabled=False):
            if not self._best:
                self._round()  # which warms up
                self._best.clear()
            ends = time.perf_counter() + seconds
            self._round()
            while time.perf_counter() < ends:
                self._round()

    def _round(self) -> None:
        for key, call in self._calls.items():
            if key in self._errors:
                continue
            try:
                taken = _time(call, self.device)
            except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError) as error:
                self._errors[key] = str(error).strip().partition("\n")[0]
            else:
                self._best[key] = min(self._best.get(key, taken), taken)

    def prices(self) -> tuple[PricedCall, ...]:
        """Return the price of each op, in the order of the step."""
        keys = [_key(replay) for replay in self.counter.replays]
        return tuple(
            PricedCall(call, self._best.get(key, 0.0), self._errors.get(key, ""))
            for call, key in zip(self.counter.calls, keys, strict=True)
        )


def total_seconds(priced: Sequence[PricedCall], kind: str | None = None) -> float:
    """Add up the seconds of all ops, or of those of one kind."""
    return sum(one.seconds for one in priced if kind is None or one.call.kind == kind)


def _key(replay: Replay) -> Any:
    return (str(replay.func), repr(replay.args), repr(replay.kwargs))


def _callable(replay: Replay) -> Callable[[], Any]:
    args, kwargs = replay.tensors()
    return lambda: replay.func(*args, **kwargs)


def _time(call: Callable[[], Any], device: torch.device) -> float:
    if device.type == "cuda":
        # The GPU is busy until the op is queued: what is timed is the op alone, not its launch.
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(_HEAD_START)
        begin.record()
        call()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3
    return clock(call, device)
