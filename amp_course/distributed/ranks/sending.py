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
from types import FunctionType
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
        except Exception as error:
            first_line = str(error).strip().split("\n")[0]
            raise Wrong(
                "your code runs in two other processes, and something that it uses cannot be sent "
                f"there ({f'{type(error).__name__}: {first_line}'[:200]}): create it inside your "
                "function instead"
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
def _by_value(values: tuple[Any, ...]) -> Iterator[None]:
    """Let what is defined in the modules of these functions travel by value, if they are the
    reader's.
    """
    functions = [inspect.unwrap(one) for one in values if callable(one)]
    names = {getattr(one, "__module__", None) for one in functions} - {"__main__"}
    modules = [sys.modules[name] for name in names if name in sys.modules]
    own = [one for one in modules if is_readers(getattr(one, "__file__", None) or "<frozen ")]
    for module in own:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in own:
            cloudpickle.unregister_pickle_by_value(module)
