"""Send a reader's function to another process: by value, with what it uses.

A function of a notebook cannot be imported elsewhere, so cloudpickle takes it apart: its code, its defaults, and the variables it
uses. The alternative, a worker script that the reader's code is pasted into, would lose those variables, and the line numbers of
the notebook.
"""

from __future__ import annotations

import contextlib
import inspect
import linecache
import os
import pickle
import sys
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

import cloudpickle

from amp_course.checking import Wrong, is_readers


def packed(function: Any, *arguments: Any) -> bytes:
    """Return a call as bytes that `pickle.loads` turns into (function, arguments) in another process.

    What is defined in the reader's own modules travels by value too, so that one that was edited and reloaded is the new one.
    Raises Wrong for what cannot be sent.
    """
    with _by_value((function, *arguments)):
        try:
            return cloudpickle.dumps((function, arguments), protocol=pickle.HIGHEST_PROTOCOL)
        except (RecursionError, MemoryError):
            raise
        except Exception as error:
            raise Wrong(
                "your code runs in two other processes, and something that it uses cannot be sent there "
                f"({_first_line(error)}): make such a thing inside your function, not outside"
            ) from error


def sources(arguments: tuple[Any, ...]) -> dict[str, list[str]]:
    """Return the source lines of functions that were typed into a notebook: {"/tmp/ipykernel_7/1.py": ["def answer():\n", …]}.

    Those cells are no files, and a message about a line should quote it.
    """
    files = {one.__code__.co_filename for one in arguments if isinstance(one, FunctionType)}
    return {file: linecache.getlines(file) for file in files if not os.path.exists(file) and linecache.getlines(file)}


@contextlib.contextmanager
def _by_value(arguments: tuple[Any, ...]) -> Iterator[None]:
    modules = {module.__name__: module for module in map(_module_of, arguments) if module is not None}
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
    return module if isinstance(module, ModuleType) and isinstance(file, str) and is_readers(file) else None


def _first_line(error: Exception) -> str:
    try:
        text = str(error).strip().split("\n")[0]
    except Exception:
        text = ""
    return f"{type(error).__name__}: {text}"[:200]
