"""Send a reader's function to another process: by value, with what it uses.

A function of a notebook cannot be imported elsewhere, so cloudpickle takes it apart: its code, its
defaults, and the variables it uses. The alternative, a worker script that the reader's code is
pasted into, would lose those variables, and the line numbers of the notebook.
"""

from __future__ import annotations

import contextlib
import inspect
import linecache
import os
import pickle
import sys
from collections.abc import Iterable, Iterator
from types import FunctionType, ModuleType
from typing import Any

import cloudpickle

from amp_course.checking import Wrong, is_readers


def packed(function: Any, *arguments: Any) -> bytes:
    """Return a call as bytes that `pickle.loads` turns into (function, arguments) in another
    process.

    What is defined in the reader's own modules travels by value too, so that one that was edited
    and reloaded is the new one. Raises Wrong for what cannot be sent.
    """
    with _by_value((function, *arguments)):
        try:
            return cloudpickle.dumps((function, arguments), protocol=pickle.HIGHEST_PROTOCOL)
        except (RecursionError, MemoryError):
            raise
        except Exception as error:
            raise Wrong(
                "your code runs in two other processes, and something that it uses cannot be sent "
                "there "
                f"({_first_line(error)}): create it inside your function instead"
            ) from error


def sources(functions: Iterable[Any]) -> dict[str, list[str]]:
    """Return the source lines of functions, and of those that they use, if they were typed into a
    notebook: {file: lines}.

    A cell is no file that the other process could read, and a message about a line should quote it.
    """
    waiting, found = [one for one in functions if isinstance(one, FunctionType)], {}
    done: set[int] = set()
    while waiting:
        one = waiting.pop()
        file = one.__code__.co_filename
        if id(one) in done or not is_readers(file) or os.path.exists(file):
            continue
        done.add(id(one))
        found[file] = linecache.getlines(file)
        used = (one.__globals__.get(name) for name in one.__code__.co_names)
        waiting += [other for other in used if isinstance(other, FunctionType)]
    return found


@contextlib.contextmanager
def _by_value(arguments: tuple[Any, ...]) -> Iterator[None]:
    modules = {
        module.__name__: module for module in map(_module_of, arguments) if module is not None
    }
    registered = cloudpickle.list_registry_pickle_by_value()
    mine = [module for name, module in modules.items() if name not in registered]
    for module in mine:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in mine:
            cloudpickle.unregister_pickle_by_value(module)


def _module_of(value: Any) -> ModuleType | None:
    """Return the module of a function or class if that is the reader's; None for any other."""
    try:
        name = inspect.unwrap(value).__module__ if callable(value) else None
    except Exception:
        return None
    module = sys.modules.get(name) if isinstance(name, str) and name != "__main__" else None
    file = getattr(module, "__file__", None)
    return (
        module
        if isinstance(module, ModuleType) and isinstance(file, str) and is_readers(file)
        else None
    )


def _first_line(error: Exception) -> str:
    try:
        text = str(error).strip().split("\n")[0]
    except Exception:
        text = ""
    return f"{type(error).__name__}: {text}"[:200]
