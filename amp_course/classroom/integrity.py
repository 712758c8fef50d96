"""Tell whether code that judges answers has been replaced since it was loaded.

What a submission runs shares a process with the check. It cannot be kept from changing it; but what it changed shows.
"""

from __future__ import annotations

import builtins
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

_ATOMS = (int, float, complex, str, bytes, bool, type(None), range)
_OURS = "amp_course"
# The modules whose functions and classes a check relies on; what they hold besides changes as they work.
_RELIED_ON = {
    *("builtins", "collections", "contextlib", "copy", "ctypes", "dis", "functools", "hashlib", "hmac", "inspect"),
    *(
        "itertools",
        "json",
        "math",
        "operator",
        "random",
        "re",
        "secrets",
        "signal",
        "statistics",
        "threading",
        "time",
        "types",
    ),
    *(
        "torch",
        "torch.amp",
        "torch.amp.autocast_mode",
        "torch.amp.grad_scaler",
        "torch.autograd",
        "torch.nn",
        "torch.optim",
    ),
    *("torch.nn.functional", "torch.testing", "torch.utils._python_dispatch", "torch.overrides"),
    *("ipykernel.kernelbase", "ipykernel.ipkernel"),
}
_NOTEBOOKS_OWN = {
    "print",
    "input",
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
# What the course itself changes while it works.
_CHANGES = ("._hints_shown", "._shown_in", "progress._waiting", "__warningregistry__", ".__doc__", ".__annotations__")


@dataclass(frozen=True)
class Part:
    """An object that a check relies on, what it consisted of when it was noted, and how that is found again."""

    path: str
    owner: Any
    inside: dict[str, Any]
    parts: Callable[[Any], Iterator[tuple[str, Any]]]


def fingerprint() -> list[Part]:
    """Note all that a check relies on. The objects are held, so that none of their addresses is given to another."""
    found: list[Part] = []
    seen: set[int] = set()
    for name, module in sorted(sys.modules.items()):
        if name.split(".")[0] == _OURS and not name.startswith(f"{_OURS}.classroom"):
            _note(name, module, _shadowed, found)
            _walk(name, vars(module), found, seen)
        elif name in _RELIED_ON:
            _note(name, module, _callables, found)
    _note("torch.Tensor", Tensor, _callables, found)
    return found


def replaced(before: list[Part]) -> list[str]:
    """Return the paths of what is no longer what it was, or gone; what is new does not count."""
    changed = []
    for part in before:
        now = dict(part.parts(part.owner))
        changed += [part.path + name for name, was in part.inside.items() if not _same(was, now.get(name, _GONE))]
    return [path for path in changed if not path.endswith(_CHANGES)]


_GONE = object()


def _same(was: Any, now: Any) -> bool:
    return was is now or (type(was) is type(now) and isinstance(was, (*_ATOMS, tuple)) and was == now)


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
            waiting += [(path + name, inside) for name, inside in _note(path, value, _parts, found).items()]


def _callables(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the functions and classes of a module, or the methods of a class, each with its code; classes with their methods."""
    names = _members(value) if isinstance(value, type) else dict(vars(value))
    for name, one in names.items():
        if name in _NOTEBOOKS_OWN or not (callable(one) or isinstance(one, (property, staticmethod, classmethod))):
            continue
        yield f".{name}", one
        if isinstance(one, types.FunctionType):
            yield f".{name}.__code__", one.__code__
        elif isinstance(one, type) and isinstance(value, types.ModuleType):
            yield from ((f".{name}{inner}", inside) for inner, inside in _callables(one))


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
        (f".{name}", names.get(name, value)) for name, value in vars(builtins).items() if name not in _NOTEBOOKS_OWN
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
            yield from ((f".{name}", inside) for name, inside in _members(value).items() if name != "__dict__")
    elif isinstance(value, (staticmethod, classmethod)):
        yield ".__func__", value.__func__
    elif isinstance(value, Mapping):
        if not isinstance(value, dict) or len(value) < 2000:
            yield from ((f".{name}", inside) for name, inside in list(value.items()) if isinstance(name, str))
    elif isinstance(value, (list, tuple)):
        yield from ((f"[{number}]", inside) for number, inside in enumerate(list(value)[:200]))
    elif isinstance(value, Tensor):
        yield "._version", value._version
    elif _is_ours(type(value)):
        yield from ((f".{name}", inside) for name, inside in list(getattr(value, "__dict__", {}).items()))


def _is_ours(kind: type) -> bool:
    return kind.__module__.split(".")[0] == _OURS
