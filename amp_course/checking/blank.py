"""Tell an answer that was not begun from one that is wrong."""

from __future__ import annotations

import dis
import functools
import inspect
import itertools
import types
from typing import Any

from amp_course.checking.explain import is_readers

# What the compiler adds of itself; the last two open every `async def`.
_SILENT = {"RESUME", "NOP", "CACHE", "COPY_FREE_VARS", "MAKE_CELL", "RETURN_GENERATOR", "POP_TOP"}


def is_blank(answer: Any) -> bool:
    """Return True if nothing was written yet: `...`, a function with only `...` in it, or only such
    things inside.

    A class is blank if its methods are, or if it holds a docstring and nothing else and inherits
    nothing of the reader's.
    """
    if answer is ...:
        return True
    if type(answer) in (dict, list, tuple):
        inside = list(answer.values() if isinstance(answer, dict) else answer)
        return bool(inside) and all(map(is_blank, inside))
    if isinstance(answer, type):
        own_bases = filter(_is_readers_class, answer.__mro__[1:])
        if any(_methods(base) and not is_blank(base) for base in own_bases):
            return False
        members = vars(answer)
        own = _methods(answer)
        if not own and members.get("__doc__"):  # a class to fill in from the first line on
            return all(name.startswith("_") for name in members)
        return bool(own) and all(map(is_blank, own))
    code = _code_of(answer)
    return code is not None and _does_nothing(code)


def _methods(kind: type) -> list[types.FunctionType]:
    bare = [
        v.__func__ if isinstance(v, staticmethod | classmethod) else v for v in vars(kind).values()
    ]
    return [value for value in bare if isinstance(value, types.FunctionType)]


def _is_readers_class(kind: type) -> bool:
    return any(is_readers(method.__code__.co_filename) for method in _methods(kind))


def open_places(answer: Any) -> list[str]:
    """Name the places of a dict or sequence that still hold `...`:
    `{"fp32": 16, "amp": ...}` → ["amp"].
    """
    if type(answer) is dict:
        return [str(key) for key, value in answer.items() if value is ...]
    if type(answer) in (list, tuple):
        return [f"number {index + 1}" for index, value in enumerate(answer) if value is ...]
    return []


def empty_methods(answer: Any) -> list[str]:
    """Name the methods of a class that still do nothing: ["`update()`"];
    [] for anything but a class.
    """
    if not isinstance(answer, type):
        return []
    return [f"`{function.__name__}()`" for function in _methods(answer) if is_blank(function)]


def _code_of(answer: Any) -> types.CodeType | None:
    """Return the code of a function, or of that which was decorated or partially applied;
    None for anything else.
    """
    try:
        code = inspect.unwrap(
            answer.func if isinstance(answer, functools.partial) else answer
        ).__code__
    except Exception:
        # objects may answer oddly when asked for an attribute, and they are the reader's
        return None
    return code if isinstance(code, types.CodeType) else None


def _does_nothing(code: types.CodeType) -> bool:
    # A body of `...` compiles to "return None" and nothing else, docstring or not, on every
    # CPython.
    steps = (step for step in dis.get_instructions(code) if step.opname not in _SILENT)
    first = list(itertools.islice(steps, 2))  # an `async def` has a handler behind its return
    names = [step.opname for step in first]
    returns_constant = names[:1] == ["RETURN_CONST"] or names == ["LOAD_CONST", "RETURN_VALUE"]
    return returns_constant and first[0].argval in (None, ...)
