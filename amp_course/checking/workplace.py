"""Where an answer runs: in an empty folder of its own, without keyboard input."""

from __future__ import annotations

import builtins
import contextlib
import io
import os
import sys
import tempfile
from collections.abc import Iterator
from typing import Any, NoReturn

from amp_course.checking.interrupts import deferred


class NoInput(io.TextIOBase):
    """Replaces `sys.stdin` and raises when it is read: nobody will answer."""

    def readable(self) -> bool:
        """Return True: it is reading that raises."""
        return True

    def readline(self, *_: Any) -> NoReturn:
        raise EOFError("nobody types while a check runs")

    read = __next__ = readline


@contextlib.contextmanager
def workplace() -> Iterator[None]:
    """Run the block in a temporary folder, where `input()` raises EOFError, and put both back."""
    with contextlib.ExitStack() as stack:
        with deferred():
            _enter(stack)
        try:
            yield
        finally:
            with deferred():
                stack.close()


def _enter(stack: contextlib.ExitStack) -> None:
    stack.callback(setattr, builtins, "input", builtins.input)
    stack.callback(setattr, sys, "stdin", sys.stdin)
    sys.stdin = no_input = NoInput()
    builtins.input = lambda *_: no_input.readline()  # Jupyter's would open a field in the browser
    if "" in sys.path:  # IPython's entry for the current folder, with the learner's own modules
        stack.callback(setattr, sys, "path", sys.path)
        sys.path = [os.getcwd() if folder == "" else folder for folder in sys.path]
    # Stay where we are if there is no room for a folder, or the current one was deleted.
    with contextlib.suppress(OSError):
        folder = tempfile.TemporaryDirectory(prefix="amp_course-", ignore_cleanup_errors=True)
        stack.enter_context(contextlib.chdir(stack.enter_context(folder)))
