"""Find out if code that judges answers has been replaced since it was loaded.

A submission shares a process with a check and cannot be kept from changing it. But changes in the
obvious places show: functions, classes and methods of the course, the parts of its judges, and what
compares tensors and numbers.
"""

from __future__ import annotations

import inspect
import math
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from amp_course.checking import Exercise

# What else decides whether two values are equal. Other parts of torch are often wrapped innocently.
_COMPARES = (
    (torch, ("isclose", "equal", "allclose", "isnan")),
    (Tensor, ("__eq__", "__or__", "isnan", "all", "any", "abs", "max", "item", "detach")),
    (math, ("isclose", "isnan", "copysign")),
)


def fingerprint(exercises: Iterable[Exercise]) -> dict[str, Any]:
    """Return all that a check relies on, by its path."""
    found: dict[str, Any] = {}
    for name, module in sorted(sys.modules.items()):
        if name.split(".")[0] == "amp_course":
            found.update(_code_in(name, vars(module)))
    for exercise in exercises:
        place = f"{exercise.id}.judge"
        found[place] = exercise.judge
        found |= {f"{place}.{name}": part for name, part in vars(exercise.judge).items()}
    for owner, names in _COMPARES:
        path = "torch.Tensor" if owner is Tensor else owner.__name__
        found |= {f"{path}.{name}": inspect.getattr_static(owner, name) for name in names}
    return found


def replaced(before: Mapping[str, Any], exercises: Iterable[Exercise]) -> list[str]:
    """Return the paths of what has changed or gone; what is new does not count."""
    now = fingerprint(exercises)
    return [path for path, was in before.items() if not _same(was, now.get(path))]


def _same(was: Any, now: Any) -> bool:
    if was is now:
        return True
    if type(was) is not type(now):
        return False
    if isinstance(was, types.FunctionType):  # a reloaded module has equal ones
        return was.__code__ == now.__code__
    return isinstance(was, types.CodeType | tuple) and bool(was == now)


def _code_in(path: str, names: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the functions and classes among names, and their parts."""
    for name, value in list(names.items()):
        place = f"{path}.{name}"
        if isinstance(value, types.FunctionType):
            yield place, value
            yield f"{place}.__code__", value.__code__
            yield f"{place}.__defaults__", value.__defaults__
        elif isinstance(value, type):
            yield place, value
            if value.__module__ == path:
                yield from _code_in(place, vars(value))
