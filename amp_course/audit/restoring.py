"""How single things are put back: a dict's content, hooks, globals, slots, random generators, counters, iterators."""

from __future__ import annotations

import ast
import collections
import functools
import io
import itertools
import random
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

MISSING = object()

Put = Callable[[], None]


def dict_putter(one: dict[Any, Any]) -> Put:
    """Return what gives a dict its present content back, if that has changed."""
    keys, values = list(dict.keys(one)), list(dict.values(one))
    ordered = isinstance(one, collections.OrderedDict)
    positions = {n: position for n, value in enumerate(values) if (position := counter_position(value)) is not None}

    def put() -> None:
        for n, position in positions.items():
            values[n] = counter_at(values[n], position)
        if len(one) == len(keys) and all(
            (a is b and x is y) for a, b, x, y in zip(one, keys, one.values(), values, strict=True)
        ):
            return
        if ordered:
            one.clear()
            for key, value in zip(keys, values, strict=True):
                one[key] = value
        else:
            dict.clear(one)
            dict.update(one, zip(keys, values, strict=True))

    return put


def hooks_putter(tensor: Tensor, name: str) -> Put:
    """Return what gives a tensor the hooks back that it has now."""
    hooks = getattr(tensor, name, None)
    content = None if hooks is None else list(hooks.items())

    def put() -> None:
        now = getattr(tensor, name, None)
        if now is None or (content is not None and list(now.items()) == content):
            return
        now.clear()
        now.update(content or ())
        if hooks is None:
            setattr(tensor, name, None)

    return put


def globals_putter(where: dict[str, Any], names: Iterable[str]) -> Put:
    """Return what gives some names of a module back what they stand for now."""
    kept = {name: where.get(name, MISSING) for name in names}
    positions = {name: counter_position(value) for name, value in kept.items()}

    def put() -> None:
        for name, position in positions.items():
            kept[name] = counter_at(kept[name], position)
        for name, value in kept.items():
            if value is MISSING:
                where.pop(name, None)
            elif where.get(name, MISSING) is not value:
                where[name] = value

    return put


def slot_putter(one: Any, name: str, value: Any) -> Put:
    """Return what gives a slot of an object its value back."""

    def put() -> None:
        if getattr(one, name, MISSING) is not value:
            delattr(one, name) if value is MISSING else setattr(one, name, value)

    return put


def slots_of(kind: type) -> Iterator[str]:
    """The names of a class's slots, inherited ones included."""
    for base in kind.__mro__:
        names = vars(base).get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            if name not in ("__dict__", "__weakref__") and isinstance(vars(base).get(name), types.MemberDescriptorType):
                yield name


def names_in(code: types.CodeType) -> set[str]:
    """The names that a function looks up, those in it included."""
    names = set(code.co_names)
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            names |= names_in(const)
    return names


def is_filled(cell: types.CellType) -> bool:
    """Tell whether a closure's variable has a value yet."""
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def same_numbers(one: Tensor, other: Tensor) -> bool:
    """Tell whether two tensors of one shape and dtype are equal, NaN being like NaN; False if that cannot be said."""
    try:
        return torch.equal(one, other)
    except (RuntimeError, NotImplementedError):
        return False


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
    if isinstance(one, np.random.RandomState):
        legacy = one.get_state()
        return lambda generator: generator.set_state(legacy)
    return None


def without_counters(one: dict[Any, Any]) -> list[tuple[Any, Any]]:
    """The items of a dict but for its counters, which `_contents` puts back."""
    return [(key, value) for key, value in dict.items(one) if counter_position(value) is None]


def counter_position(one: Any) -> str | None:
    """Return where a counter stands, None for anything else: "count(3)"."""
    return repr(one) if type(one) is itertools.count else None


def counter_at(one: Any, position: str | None) -> Any:
    """Return a counter that stands where this one stood: it cannot be set back, but its owner can be given another."""
    if position is None or repr(one) == position:
        return one
    return itertools.count(*ast.literal_eval(position.removeprefix("count").replace(")", ",)")))


def index_of(one: Any) -> int | None:
    """Return the place of an iterator that can be set back: one over a list, a tuple or a range, that has not ended."""
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
            return one.gi_frame.f_lasti if one.gi_frame is not None else "ended", _locals(one)
        hint = one.__length_hint__() if hasattr(one, "__length_hint__") else None
        yielded = getattr(one, "_num_yielded", None)
        return hint, yielded, repr(one) if type(one).__module__ == "itertools" else None
    except Exception:
        return None


def _locals(generator: types.GeneratorType[Any, Any, Any]) -> Any:
    frame = generator.gi_frame
    plain = (int, float, str, bool, type(None))
    return None if frame is None else {k: v if isinstance(v, plain) else id(v) for k, v in frame.f_locals.items()}


def reseed(generator: Any, seed: int) -> None:
    """Give a random generator another state."""
    if isinstance(generator, torch.Generator):
        generator.manual_seed(seed)
    elif isinstance(generator, (random.Random, np.random.RandomState)):
        generator.seed(seed)
    else:
        generator.bit_generator.state = type(generator.bit_generator)(seed).state


def checksum(one: np.ndarray[Any, Any]) -> bytes:
    """Return some of an array's bytes: enough to notice that it was filled anew."""
    flat = one.reshape(-1) if one.flags.c_contiguous else one.flat
    return np.asarray(flat[:: max(1, one.size // 2**16)]).tobytes()
