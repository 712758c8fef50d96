"""Recognize an answer that has not been begun, which is not a wrong one."""

from __future__ import annotations

import dis
import functools
import inspect
import itertools
import types
from typing import Any

from amp_course.checking.explain import is_learners

# Opcodes that the compiler adds; the last two open every `async def`.
_SILENT = {"RESUME", "NOP", "CACHE", "COPY_FREE_VARS", "MAKE_CELL", "RETURN_GENERATOR", "POP_TOP"}


def is_blank(answer: Any) -> bool:
    """Return True if nothing was written yet: `...`, a function with only `...` in it, or a dict,
    list or tuple of nothing else.

    A class is blank if its methods are, or if it holds a docstring alone and inherits nothing that
    the learner wrote.
    """
    if answer is ...:
        return True
    if type(answer) in (dict, list, tuple):
        inside = list(answer.values() if isinstance(answer, dict) else answer)
        return bool(inside) and all(map(is_blank, inside))
    if isinstance(answer, type):
        if any(_is_learners_class(base) and not is_blank(base) for base in answer.__mro__[1:]):
            return False
        methods = _methods(answer)
        if not methods and answer.__doc__:  # a class to fill in from the first line on
            return all(name.startswith("_") for name in vars(answer))
        return bool(methods) and all(map(is_blank, methods))
    code = _code_of(answer)
    return code is not None and _does_nothing(code)


def _methods(kind: type) -> list[types.FunctionType]:
    members = [getattr(value, "__func__", value) for value in vars(kind).values()]
    return [member for member in members if isinstance(member, types.FunctionType)]


def _is_learners_class(kind: type) -> bool:
    return any(is_learners(method.__code__.co_filename) for method in _methods(kind))


def open_places(answer: Any) -> list[str]:
    """Name the entries of a dict or sequence that still hold `...`:
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
    """Return the code of a function, of the one inside a decorator or a partial; else None."""
    function = answer.func if isinstance(answer, functools.partial) else answer
    try:
        code = inspect.unwrap(function).__code__
    except Exception:  # looking up an attribute of the learner's object may raise anything
        return None
    return code if isinstance(code, types.CodeType) else None


def _does_nothing(code: types.CodeType) -> bool:
    # On every CPython, a body of `...` compiles to "return None" alone, docstring or not.
    steps = (step for step in dis.get_instructions(code) if step.opname not in _SILENT)
    first = list(itertools.islice(steps, 2))  # an `async def` has a handler after its return
    names = [step.opname for step in first]
    returns_constant = names[:1] == ["RETURN_CONST"] or names == ["LOAD_CONST", "RETURN_VALUE"]
    return returns_constant and first[0].argval in (None, ...)
