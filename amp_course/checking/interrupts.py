"""Ctrl-C during a check: KeyboardInterrupt at once, but never while something is being put back.

A check takes the signal over (`noted`). Where half a job would do harm, `held` puts the interrupt
off until the job is done. Outside of a check, in other threads than the main one, and where
somebody else handles the signal, nothing here does anything.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


class _State:
    held = 0  # how many jobs are running that must not be left half done
    pending = False  # Ctrl-C came, whatever became of the KeyboardInterrupt


_state = _State()


def _note(signum: int, frame: FrameType | None) -> None:
    _state.pending = True
    if not _state.held:
        raise KeyboardInterrupt


def _in_main() -> bool:
    return threading.current_thread() is threading.main_thread()


@contextlib.contextmanager
def noted() -> Iterator[None]:
    """Take over what Ctrl-C does until the block ends, in the main thread,
    from Python's own handler.
    """
    if not _in_main() or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    _state.held, _state.pending = 0, False
    try:
        signal.signal(signal.SIGINT, _note)
        yield
    finally:
        _state.held = 1  # until the next line has run
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _state.held, _state.pending = 0, False


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Let Ctrl-C wait until the block ends; it raises KeyboardInterrupt then,
    even if it came before.
    """
    if not _in_main():
        yield
        return
    _state.held += 1
    try:
        yield
    finally:
        _state.held -= 1
    if not _state.held:
        raise_pending()


def hold_from_now_on() -> None:
    """Let Ctrl-C do nothing until the check ends, but `raise_pending` may still be asked."""
    if _in_main():
        _state.held += 1


def raise_pending() -> None:
    """Raise KeyboardInterrupt if Ctrl-C came since the check began."""
    if _state.pending and _in_main():
        raise KeyboardInterrupt
