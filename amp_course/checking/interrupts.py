"""Ctrl-C during a check: KeyboardInterrupt at once, but never while something is being put back.

A check takes the signal over (`handled`). Where half a job would do harm, `deferred` delays the
interrupt until the job is done. Outside of a check, in threads other than the main one, and where
something else handles the signal, nothing here has an effect.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


class _State:
    deferring = 0  # how many jobs are running that must not be left half done
    pending = False  # Ctrl-C came, whatever became of the KeyboardInterrupt


_state = _State()


def _note(signum: int, frame: FrameType | None) -> None:
    _state.pending = True
    if not _state.deferring:
        raise KeyboardInterrupt


def _in_main() -> bool:
    return threading.current_thread() is threading.main_thread()


@contextlib.contextmanager
def handled() -> Iterator[None]:
    """Take Ctrl-C over from Python's own handler until the block ends, in the main thread."""
    if not _in_main() or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    _state.deferring, _state.pending = 0, False
    try:
        signal.signal(signal.SIGINT, _note)
        yield
    finally:
        _state.deferring = 1  # until the next line has run
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _state.deferring, _state.pending = 0, False


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Let Ctrl-C wait until the block ends, and raise KeyboardInterrupt then,
    even if it came before the block.
    """
    if not _in_main():
        yield
        return
    _state.deferring += 1
    try:
        yield
    finally:
        _state.deferring -= 1
    if not _state.deferring:
        raise_pending()


def ignore_from_now_on() -> None:
    """Ignore Ctrl-C until the check ends; `raise_pending` still raises."""
    if _in_main():
        _state.deferring += 1


def raise_pending() -> None:
    """Raise KeyboardInterrupt if Ctrl-C came since the check began."""
    if _state.pending and _in_main():
        raise KeyboardInterrupt
