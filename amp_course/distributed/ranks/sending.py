"""Send a learner's function to another process: by value, with what it uses.

A function from a notebook cannot be imported in another process, so cloudpickle sends its code, its
defaults and the variables it uses. The alternative, pasting the learner's code into a worker
script, would lose those variables and the notebook's line numbers.
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

from amp_course.checking import Wrong, is_learners


def packed(function: Any, *arguments: Any) -> bytes:
    """Return a call as bytes that `pickle.loads` turns into (function, arguments) in another
    process.

    What the learner's own modules define is sent by value too, so that an edited and reloaded
    module is the new one. Raises Wrong for what cannot be sent.
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

    The other process cannot read a cell, and messages there quote lines.
    """
    waiting, found = [*functions], {}
    done: set[int] = set()
    while waiting:
        function = waiting.pop()
        if not isinstance(function, FunctionType) or id(function) in done:
            continue
        done.add(id(function))
        code = function.__code__
        if is_learners(code.co_filename) and not os.path.exists(code.co_filename):
            found[code.co_filename] = linecache.getlines(code.co_filename)
            waiting += [function.__globals__.get(name) for name in code.co_names]
    return found


@contextlib.contextmanager
def _by_value(values: tuple[Any, ...]) -> Iterator[None]:
    """Pickle by value what is defined in the learner's modules that these functions come from."""
    functions = [inspect.unwrap(value) for value in values if callable(value)]
    names = {getattr(function, "__module__", None) for function in functions} - {"__main__"}
    modules = [sys.modules[name] for name in names if name in sys.modules]
    own = [
        module for module in modules if is_learners(getattr(module, "__file__", None) or "<frozen ")
    ]
    for module in own:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in own:
            cloudpickle.unregister_pickle_by_value(module)
