"""Price ops by timing each alone on this machine: what a step would take, told from the list of its ops.

Each op of the list is called again on new tensors of the same shapes, strides and dtypes. Ops that are alike are timed once.
Between two calls of an op come calls of the others, as in a step, so that it does not find its own data in the cache.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from amp_course.kit.measure import synchronize
from amp_course.speed.counting import OpCall, OpCounter, Replay


@dataclass(frozen=True)
class PricedCall:
    """An op and the seconds that it took alone; `error` says why it could not be called again, and then it costs 0."""

    call: OpCall
    seconds: float
    error: str = ""


def price(counter: OpCounter, device: torch.device, *, seconds: float = 2.0, least: int = 3) -> tuple[PricedCall, ...]:
    """Time every op that was counted, each at least `least` times, for about `seconds` in all."""
    kinds: dict[Any, Replay] = {}
    for replay in counter.replays:
        kinds.setdefault(_key(replay), replay)
    best: dict[Any, float] = {}
    errors: dict[Any, str] = {}
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        calls = {key: _callable(replay) for key, replay in kinds.items()}
        began, rounds = time.perf_counter(), 0
        while rounds <= least or time.perf_counter() - began < seconds:
            for key, call in calls.items():
                if key in errors:
                    continue
                try:
                    taken = _time(call, device)
                except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError) as error:
                    errors[key] = str(error).strip().partition("\n")[0]
                    continue
                if rounds:  # the first round warms up
                    best[key] = min(best.get(key, taken), taken)
            rounds += 1
    keys = [_key(replay) for replay in counter.replays]
    return tuple(
        PricedCall(call, best.get(key, 0.0), errors.get(key, "")) for call, key in zip(counter.calls, keys, strict=True)
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
    synchronize(device)
    start = time.perf_counter()
    call()
    synchronize(device)
    return time.perf_counter() - start
