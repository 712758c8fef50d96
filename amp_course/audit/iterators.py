"""Things that move on as they are used, generators, counters, iterators, files: where they stand, and what sets them back."""

from __future__ import annotations

import ast
import functools
import io
import itertools
import random
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

_COUNTERS: dict[
    int, tuple[Any, Any]
] = {}  # id of a counter that has moved on → that counter, and what all its owners get instead


def generator_putter(one: Any) -> Callable[[Any], None] | None:
    """Return what puts a random generator back, or None for another object."""
    if isinstance(one, torch.Generator):
        torchs = one.get_state()
        return lambda generator: generator.set_state(torchs)
    if isinstance(one, random.Random):
        pythons = one.getstate()
        return lambda generator: generator.setstate(pythons)
    if isinstance(one, np.random.Generator):
        numpys = one.bit_generator.state
        return lambda generator: setattr(generator.bit_generator, "state", numpys)
    if isinstance(one, np.random.BitGenerator):
        bits = one.state
        return lambda generator: setattr(generator, "state", bits)
    if isinstance(one, np.random.RandomState):
        legacy = one.get_state()
        return lambda generator: generator.set_state(legacy)
    return None


def without_counters(one: dict[Any, Any]) -> list[tuple[Any, Any]]:
    """The items of a dict but for its counters, which `dict_putter` replaces."""
    return [(key, value) for key, value in dict.items(one) if counter_position(value) is None]


def counter_position(one: Any) -> str | None:
    """Return where a counter stands, None for anything else: "count(3)"."""
    return repr(one) if type(one) is itertools.count else None


def counter_at(one: Any, position: str | None) -> Any:
    """Return a counter at the position where this one was: it cannot be reset, but its owners can be given another."""
    if position is None or repr(one) == position:
        return one
    if id(one) not in _COUNTERS:
        new = itertools.count(*ast.literal_eval(position.removeprefix("count").replace(")", ",)")))
        _COUNTERS[id(one)] = one, new
    return _COUNTERS[id(one)][1]


def forget_counters() -> None:
    """Begin to put back: what replaced a counter before has moved on, too."""
    _COUNTERS.clear()


def index_of(one: Any) -> int | None:
    """Return the place of an iterator that can be reset: one over a list, a tuple or a range, that has not ended."""
    if not isinstance(one, (type(iter([])), type(iter(())), type(iter(range(0))))):
        return None
    reduced = one.__reduce__()
    return reduced[2] if len(reduced) > 2 and isinstance(reduced[2], int) else None


def position_of(one: Any) -> Any:
    """Say where an iterator or a file stands, as far as can be seen without moving it."""
    try:
        if isinstance(one, functools._lru_cache_wrapper):
            return one.cache_info()
        if isinstance(one, enumerate):
            return one.__reduce__()[1][1]
        if isinstance(one, io.IOBase):
            return None if one.closed else (one.tell() if one.seekable() else None)
        if isinstance(one, types.GeneratorType):
            place = one.gi_frame.f_lasti if one.gi_frame is not None else "ended"
            return place, _locals(one.gi_frame), position_of(one.gi_yieldfrom)
        if isinstance(one, types.CoroutineType):
            place = one.cr_frame.f_lasti if one.cr_frame is not None else "ended"
            return place, _locals(one.cr_frame), position_of(one.cr_await)
        hint = one.__length_hint__() if hasattr(one, "__length_hint__") else None
        yielded = getattr(one, "_num_yielded", None)
        return hint, yielded, repr(one) if type(one).__module__ == "itertools" else None
    except Exception:
        return None


def answers_of(one: Any) -> dict[str, Any]:
    """Ask an object that is written in C what it lets be seen of its state: a lock, a queue, a hash, a database."""
    answers = {}
    for name in ("locked", "qsize", "hexdigest", "total_changes", "n_children_spawned"):
        try:
            answer = getattr(one, name)
            answers[name] = answer() if callable(answer) else answer
        except Exception:  # it has none, or does not answer here
            continue
    return answers


def _locals(frame: types.FrameType | None) -> Any:
    plain = (int, float, str, bool, type(None))
    return None if frame is None else {k: v if isinstance(v, plain) else id(v) for k, v in frame.f_locals.items()}


def reseed(generator: Any, seed: int) -> None:
    """Give a random generator another state."""
    if isinstance(generator, torch.Generator):
        generator.manual_seed(seed)
    elif isinstance(generator, (random.Random, np.random.RandomState)):
        generator.seed(seed)
    else:
        bits = generator if isinstance(generator, np.random.BitGenerator) else generator.bit_generator
        bits.state = type(bits)(seed).state


def text_putter(one: io.StringIO | io.BytesIO) -> Callable[[], None]:
    """Return what gives a file in memory its text and its place back."""
    content, place = one.getvalue(), one.tell()

    def put() -> None:
        if one.getvalue() != content:
            one.seek(0)
            one.truncate()
            one.write(content)  # type: ignore[arg-type]
        one.seek(place)

    return put
