"""Find code that judges answers and has been replaced since it was loaded.

What a submission runs shares a process with the check. It cannot be kept from changing it; but what
it changed shows.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import math
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_ATOMS = (int, float, complex, str, bytes, bool, type(None), range)
_OURS = "amp_course"
_NOTEBOOKS_OWN = {
    "print",
    "input",
    "open",
    "exit",
    "quit",
    "help",
    "display",
    "get_ipython",
    "copyright",
    "credits",
    "license",
    "_",
}
# What else decides whether two values are equal. People wrap much else of torch, and mean no harm.
_COMPARES = (
    (torch, ("isclose", "equal", "allclose", "isnan")),
    (
        Tensor,
        (
            "__eq__",
            "__or__",
            "__and__",
            "isnan",
            "all",
            "any",
            "abs",
            "max",
            "item",
            "tolist",
            "detach",
            "nan_to_num",
        ),
    ),
    (math, ("isclose", "isnan", "copysign")),
)
# What the course itself, Python or a notebook changes while it works.
_CHANGES = (
    *(
        "._hints_shown",
        "._shown_in",
        "progress._waiting",
        "__warningregistry__",
        ".__doc__",
        ".__annotations__",
        ".__setstate__",  # torch.compile replaces that of nn.Module
    ),
    *(
        "__loader__",
        "__spec__",
        "__file__",
        "__cached__",
        "__builtins__",
        "__path__",
        "patched._last[0]",
        ".seconds",
    ),
)


@dataclass(frozen=True)
class Part:
    """An object that a check relies on, what it consisted of when it was noted,
    and how that is found again.
    """

    path: str
    owner: Any
    inside: dict[str, Any]
    parts: Callable[[Any], Iterator[tuple[str, Any]]]


def fingerprint() -> list[Part]:
    """Note all that a check relies on. The objects are held,
    so that none of their addresses is given to another.
    """
    found: list[Part] = []
    seen: set[int] = set()
    for name, module in sorted(sys.modules.items()):
        if name.split(".")[0] == _OURS:
            _note(name, module, _shadowed, found)
            _walk(name, vars(module), found, seen)
    for owner, names in _COMPARES:
        path = "torch.Tensor" if owner is Tensor else owner.__name__
        _note(path, owner, functools.partial(_chosen, names), found)
    _note("builtins", builtins, _callables, found)
    return found


def replaced(before: list[Part]) -> list[str]:
    """Return the paths of what is no longer what it was, or gone; what is new does not count."""
    changed = []
    for part in before:
        now = dict(part.parts(part.owner))
        changed += [
            part.path + name
            for name, was in part.inside.items()
            if not _same(was, now.get(name, _GONE))
        ]
    return [path for path in changed if not path.endswith(_CHANGES)]


_GONE = object()


def _same(was: Any, now: Any) -> bool:
    # a reloaded module has equal ones
    if isinstance(was, types.FunctionType) and isinstance(now, types.FunctionType):
        return was is now or (was.__code__ == now.__code__ and was.__globals__ is now.__globals__)
    return was is now or (
        type(was) is type(now) and isinstance(was, (*_ATOMS, tuple)) and was == now
    )


def _note(
    path: str, owner: Any, parts: Callable[[Any], Iterator[tuple[str, Any]]], found: list[Part]
) -> dict[str, Any]:
    inside = dict(parts(owner))
    if inside:
        found.append(Part(path, owner, inside, parts))
    return inside


def _walk(path: str, value: Any, found: list[Part], seen: set[int]) -> None:
    """Note an object of the course and what it consists of, all the way down."""
    waiting = [(path, value)]
    while waiting:
        path, value = waiting.pop()
        if not isinstance(value, _ATOMS) and id(value) not in seen:
            seen.add(id(value))
            waiting += [
                (path + name, inside) for name, inside in _note(path, value, _parts, found).items()
            ]


def _chosen(names: tuple[str, ...], owner: Any) -> Iterator[tuple[str, Any]]:
    yield from ((f".{name}", inspect.getattr_static(owner, name)) for name in names)


def _callables(module: types.ModuleType) -> Iterator[tuple[str, Any]]:
    names = [(name, value) for name, value in vars(module).items() if name not in _NOTEBOOKS_OWN]
    yield from ((f".{name}", value) for name, value in names if callable(value))


def _members(kind: type) -> dict[str, Any]:
    """Return all that a class has, what it inherits too: a new name of its own may hide that."""
    members: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        members.update(vars(base))
    return members


def _shadowed(module: types.ModuleType) -> Iterator[tuple[str, Any]]:
    """Yield what a module means by each builtin's name: a new name of its own may hide that."""
    names = vars(module)
    yield from (
        (f".{name}", names.get(name, value))
        for name, value in vars(builtins).items()
        if name not in _NOTEBOOKS_OWN
    )


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, types.FunctionType):
        yield ".__code__", value.__code__
        yield ".__defaults__", value.__defaults__
        yield ".__kwdefaults__", value.__kwdefaults__
        for number, cell in enumerate(value.__closure__ or ()):
            try:
                yield f".closure[{number}]", cell.cell_contents
            except ValueError:  # not filled yet
                continue
    elif isinstance(value, type):
        if _is_ours(value):
            yield from (
                (f".{name}", inside)
                for name, inside in _members(value).items()
                if name != "__dict__"
            )
    elif isinstance(value, (staticmethod, classmethod)):
        yield ".__func__", value.__func__
    elif isinstance(value, dict) and value is not vars(builtins):
        if len(value) < 2000:
            yield from (
                (f".{name}", inside)
                for name, inside in list(value.items())
                if isinstance(name, str)
            )
    elif isinstance(value, (list, tuple)):
        yield from ((f"[{number}]", inside) for number, inside in enumerate(list(value)[:200]))
    elif isinstance(value, Tensor):
        yield "._version", value._version
    elif _is_ours(type(value)):
        yield from (
            (f".{name}", inside) for name, inside in list(getattr(value, "__dict__", {}).items())
        )


def _is_ours(kind: type) -> bool:
    return kind.__module__.split(".")[0] == _OURS
