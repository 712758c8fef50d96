"""Names that an answer rebinds: `F.softmax = …`, `builtins.print = …`, `nn.Linear.forward = …`, `math.pi = …`.

Watched are Python's commonest modules, NumPy's, the public ones of torch that a training uses, and the course's, with the classes
of the last two, and the constants of modules. A name that is new in a module harms nobody
and stays; one that is new in a class hides an inherited one, or adds to all its objects.
"""

from __future__ import annotations

import operator
import os
import re
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch

from amp_course.checking.state.item import Item, listed

_WATCHED = re.compile(
    r"builtins|copy|functools|gc|itertools|json|math|operator|os|os\.path|random|time|warnings"
    r"|numpy(\.linalg|\.random)?|amp_course(\..*)?|torch(\.(nn|optim|amp|autograd|backends|random|linalg|special|fft)"
    r"(\.[^_]\w*)*|\.cuda(\.amp(\..*)?)?|\.functional|\.overrides|\.utils(\.checkpoint|\.data(\.[^_]\w*)*)?|\._C(\._nn)?|\._tensor)?"
)
_OWNERS = ("torch", "amp_course")  # packages whose classes are watched
_TORCH = os.path.dirname(torch.__file__) + os.sep
_DESCRIPTORS = {types.ModuleType, types.GetSetDescriptorType, property, staticmethod, classmethod}
_CONSTANTS = {torch.dtype, torch.device, torch.Generator}
_NUMBERS = {
    float,
    int,
    bool,
}  # constants in these modules; elsewhere libraries count with them (`FakeTensorMode.cache_hits`)
_WITH_NUMBERS = {"math", "numpy", "torch"}
_LEGACY = type(torch.FloatTensor)  # of ten classes that nobody uses, with 740 names each
_SET_WITH_THE_DTYPE = (torch, "Storage")
_NEW = object()
# A learner may replace these builtins, and the comparison must not run the learner's.
_all, _callable, _issubclass, _len, _map, _type, _is = all, callable, issubclass, len, map, type, operator.is_
_equal, _chained = operator.eq, chain.from_iterable

Looks = list[tuple[Any, dict[str, Any]]]  # modules and classes, each with its names


class _Steady:
    """All names of the modules and classes that have kept theirs so far, in one row: to see that they still do takes tens of
    thousands of comparisons, and no line of Python for any.

    looks:    these modules and classes, with their names
    restless: the others, and for each module the watched classes in it
    """

    def __init__(self, looks: Looks, restless: list[tuple[Any, tuple[type, ...]]]) -> None:
        self.looks, self.restless = looks, restless
        self._modules = list(sys.modules.values())
        self._now = [_names(owner).values() for owner, _ in looks]  # these views change with what they show
        self._sizes = [len(table) for _, table in looks]
        self._values = list(_chained(table.values() for _, table in looks))

    def keeps(self) -> bool:
        """Tell whether all names refer to what they did."""
        if not _all(_map(_equal, _map(_len, self._now), self._sizes)):
            return False
        return _all(_map(_is, _chained(self._now), self._values))

    def is_complete(self) -> bool:
        """Tell whether there is no other module or class to watch."""
        modules = sys.modules.values()
        return (
            _len(modules) == _len(self._modules)
            and _all(_map(_is, modules, self._modules))
            and _all(_same_row(_look_at(owner)[1], kinds) for owner, kinds in self.restless)
        )


@dataclass(frozen=True)
class Snapshot:
    """The names of the watched modules, and of the classes that are found in them."""

    steady: _Steady
    restless: Looks

    def suspects(self) -> Looks:
        """Return the modules and classes that may have changed since."""
        return self.restless if self.steady.keeps() else [*self.steady.looks, *self.restless]


_watched_names: dict[str, bool] = {}
# id → a module or class, its names when it was last looked at, and the watched classes among them. Most never change, and to
# compare is several times as quick as to copy.
_seen: dict[int, tuple[Any, dict[str, Any], tuple[type, ...]]] = {}
_restless: set[int] = set()  # the ids of those that have changed, such as `warnings`, whose filters are often replaced
_last: list[_Steady] = []  # at most one, in a list: a global name that is bound again would itself be a change


def _modules() -> Iterator[types.ModuleType]:
    for name, module in list(sys.modules.items()):
        watched = _watched_names.get(name)
        if watched is None:
            watched = _watched_names[name] = _WATCHED.fullmatch(name) is not None
        if watched and issubclass(type(module), types.ModuleType):
            yield module


def snapshot() -> Snapshot:
    """Return the names of the watched modules, and of the classes that are found in them."""
    steady = _last[0] if _last and _last[0].keeps() and _last[0].is_complete() else _look_at_all()
    return Snapshot(steady, [(owner, _look_at(owner)[0]) for owner, _ in steady.restless])


def _look_at_all() -> _Steady:
    classes: dict[type, None] = {}
    owners: list[Any] = []
    for module in _modules():
        owners.append(module)
        classes.update(dict.fromkeys(_look_at(module)[1]))
    looks = [(owner, *_look_at(owner)) for owner in (*owners, *classes)]
    _last[:] = [
        _Steady(
            [(owner, table) for owner, table, _ in looks if id(owner) not in _restless],
            [(owner, kinds) for owner, _, kinds in looks if id(owner) in _restless],
        )
    ]
    return _last[0]


def _look_at(owner: Any) -> tuple[dict[str, Any], tuple[type, ...]]:
    """Return a copy of the names of a module or class, and the watched classes among those of a module."""
    now, seen = _names(owner), _seen.get(id(owner))
    if seen is None or not _same(now, seen[1]):
        if seen is not None:
            _restless.add(id(owner))
        table = now.copy()
        kinds = [] if _is_class(owner) else [each for each in table.values() if _is_class(each) and _is_watched(each)]
        seen = _seen[id(owner)] = (owner, table, tuple(kinds))
    return seen[1], seen[2]


def _same(now: Any, old: dict[str, Any]) -> bool:
    return _same_row(now.values(), old.values())


def _same_row(one: Any, other: Any) -> bool:
    return _len(one) == _len(other) and _all(_map(_is, one, other))


def _is_watched(kind: type) -> bool:
    if type(kind) is _LEGACY:
        return False
    module, name = (type.__getattribute__(kind, which) for which in ("__module__", "__name__"))
    return module.startswith(_OWNERS) and not name.endswith("Storage")  # of these there are hundreds


def _is_class(value: Any) -> bool:
    return _issubclass(_type(value), _type)  # not `isinstance`: that asks the learner's objects for their `__class__`


def _names(owner: Any) -> Any:
    return (_type if _is_class(owner) else types.ModuleType).__getattribute__(owner, "__dict__")


def _counts(value: Any) -> bool:
    return _callable(value) or _type(value) in _DESCRIPTORS


def _is_constant(owner: Any, name: str, value: Any) -> bool:
    if _is_class(owner) or name[0] == "_":
        return False
    return _type(value) in _CONSTANTS or (_type(value) in _NUMBERS and owner.__name__ in _WITH_NUMBERS)


def replaced(was: Snapshot) -> list[tuple[Any, str, Any]]:
    """Return (module or class, name, original) for each name that refers to something else now."""
    found = []
    for owner, old in was.suspects():
        now = _names(owner)
        if _same(now, old):
            continue
        for name, value in old.items():
            other = now.get(name, _NEW)
            if other is value or not (_counts(value) or _is_constant(owner, name, value)) or _by_torch(other, value):
                continue
            if (owner, name) != _SET_WITH_THE_DTYPE:
                found.append((owner, name, value))
        if _is_class(owner):
            added = [(name, value) for name, value in now.items() if name not in old]
            found += [(owner, name, _NEW) for name, value in added if _counts(value) and not _by_torch(value)]
    return found


def _by_torch(value: Any, original: Any = None) -> bool:
    """Tell whether torch itself did it: it wraps an optimizer's `step` when the first one is made, and more to compile."""
    if _type(value) is not types.FunctionType or not value.__code__.co_filename.startswith(_TORCH):
        return False
    by_compiler = value.__qualname__.startswith("install_generation_tagging_init.")  # of the first `torch.compile`
    return original is None or by_compiler or value.__dict__.get("__wrapped__") is original


def _put_back(was: Snapshot) -> None:
    for owner, name, value in replaced(was):
        kind: Any = _type if _is_class(owner) else types.ModuleType
        if value is _NEW:
            kind.__delattr__(owner, name)
        else:
            kind.__setattr__(owner, name, value)


def _tell(was: Snapshot, found: list[tuple[Any, str, Any]]) -> str:
    return (
        f"your code replaces {listed({f'{owner.__name__}.{name}' for owner, name, _ in found})} for the whole notebook, so later "
        "cells would use yours. Give what you made a name of its own and leave the original as it is"
    )


PATCHED = Item(snapshot, _put_back, _tell, find=replaced)
