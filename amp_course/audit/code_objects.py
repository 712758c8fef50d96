"""Remember what code holds, and yield what it refers to: functions, closures, classes and modules, those of the reader's own."""

from __future__ import annotations

import logging
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

from amp_course.audit.iterators import counter_at, counter_position
from amp_course.audit.restoring import MISSING, dict_putter, globals_putter, is_filled, names_in
from amp_course.checking.explain import is_readers

Parts = list[tuple[str, Callable[[], None]]]  # name → what puts a thing of that name back


def follow_function(parts: Parts, path: str, one: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Remember a function's defaults, attributes and code; yield its closure's variables and the globals that it names."""
    defaults, keywords, code = one.__defaults__, one.__kwdefaults__, one.__code__
    kept = dict(keywords) if keywords is not None else None

    def put() -> None:
        if one.__defaults__ is not defaults:
            one.__defaults__ = defaults
        if one.__kwdefaults__ != kept:
            one.__kwdefaults__ = kept
        if one.__code__ is not code:
            one.__code__ = code

    parts.append((path, put))
    parts.append((path, dict_putter(vars(one))))
    yield from ((f"{path}.{key}", value) for key, value in vars(one).items())
    yield from ((path, value) for value in (*(defaults or ()), *(kept or {}).values()))
    yield from zip(code.co_freevars, one.__closure__ or (), strict=True)
    if is_readers(code.co_filename):
        named = names_in(code)
        if "globals" in named:
            named = {name for name in one.__globals__ if not name.startswith("__")}
        parts.append((path, globals_putter(one.__globals__, named)))
        for name in named:
            if name in one.__globals__ and counter_position(one.__globals__[name]) is None:
                yield name, one.__globals__[name]
            elif name in sys.modules:  # imported in the function
                yield name, sys.modules[name]


def follow_callable(parts: Parts, path: str, one: Any) -> Iterator[tuple[str, Any]]:
    """Remember what a bound method or a partial holds, and yield it."""
    if isinstance(one, types.MethodType):
        yield path, one.__func__
        yield path if "." in path else "self", one.__self__
    else:
        func, args, keywords = one.func, one.args, one.keywords
        state = func, args, keywords, one.__dict__
        same = lambda: one.func is func and one.args is args and one.keywords is keywords  # noqa: E731
        parts.append((path, lambda: None if same() else one.__setstate__(state)))
        yield from ((path, value) for value in (func, args, keywords))


def follow_cell(parts: Parts, path: str, one: types.CellType) -> Iterator[tuple[str, Any]]:
    """Remember a closure's variable."""
    content = one.cell_contents if is_filled(one) else MISSING
    position = counter_position(content)

    def put() -> None:
        nonlocal content
        if content is MISSING:
            if is_filled(one):
                del one.cell_contents
            return
        content = counter_at(content, position)
        if not is_filled(one) or one.cell_contents is not content:
            one.cell_contents = content

    parts.append((path, put))
    if content is not MISSING and position is None:
        yield path, content


def follow_class(parts: Parts, path: str, one: type) -> Iterator[tuple[str, Any]]:
    """Remember the attributes of a class of the reader's own, or of one that was made at run time, as by `parametrize`."""
    module = sys.modules.get(one.__module__)
    made_at_run_time = (
        module is not None and "." not in one.__qualname__ and vars(module).get(one.__qualname__) is not one
    )
    if not made_at_run_time and one.__module__ != "__main__" and not _is_readers(module):
        return
    content = {k: v for k, v in vars(one).items() if not k.startswith("__")}

    def put() -> None:
        now = vars(one)
        for key in [key for key in now if not key.startswith("__") and key not in content]:
            delattr(one, key)
        for key, value in content.items():
            if now.get(key, MISSING) is not value:
                setattr(one, key, value)

    parts.append((path, put))
    yield path, type(one)
    functions = {key: value for key, value in vars(one).items() if isinstance(value, types.FunctionType)}
    yield from ((f"{path}.{key}", value) for key, value in (functions | content).items())


def follow_module(parts: Parts, path: str, one: types.ModuleType) -> Iterator[tuple[str, Any]]:
    """Remember the globals of a module of the reader's own."""
    if not _is_readers(one):
        return
    content = {k: v for k, v in vars(one).items() if not k.startswith("__")}

    def take_away() -> None:
        for key, value in list(vars(one).items()):  # a module that was imported meanwhile stays
            if key not in content and not key.startswith("__") and not isinstance(value, types.ModuleType):
                delattr(one, key)

    parts += [(path, take_away), (path, globals_putter(vars(one), content))]
    yield from ((f"{path}.{key}", value) for key, value in content.items() if counter_position(value) is None)


def follow_logger(parts: Parts, path: str, one: Any) -> Iterator[tuple[str, Any]]:
    """Remember a logger's or a handler's attributes; yield what they keep in lists."""
    put_attributes = dict_putter(vars(one))

    def put() -> None:
        put_attributes()
        if isinstance(one, logging.Logger):
            one.manager._clear_cache()  # type: ignore[attr-defined]  # of which levels are on

    parts.append((path, put))
    yield from ((f"{path}.{key}", value) for key, value in vars(one).items() if isinstance(value, list))


def _is_readers(module: types.ModuleType | None) -> bool:
    """Tell whether a module is the reader's own."""
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and is_readers(file)
