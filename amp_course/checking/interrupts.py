"""Ctrl-C during a check: it raises KeyboardInterrupt at once, but never while something is being put back.

A check takes the signal over (`noted`). Where half a job would do harm, `held` puts the interrupt off until the job is done.
Outside of a check, and where somebody else handles the signal, nothing here does anything.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TypeVar, cast

T = TypeVar("T")


class _State:
    held = 0  # how many jobs are running that must not be left half done
    pending = False  # Ctrl-C came, whatever became of the KeyboardInterrupt


_state = _State()


def _note(signum: int, frame: FrameType | None) -> None:
    _state.pending = True
    if not _state.held:
        raise KeyboardInterrupt


@contextlib.contextmanager
def noted() -> Iterator[None]:
    """Take over what Ctrl-C does, until the block ends; only in the main thread, and only from Python's own handler."""
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
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
    """Let Ctrl-C wait until the block ends. Raises KeyboardInterrupt then, even if it came before."""
    before = _state.held
    _state.held = before + 1
    try:
        yield
    finally:
        _state.held = before
    if not before:
        raise_pending()


def released(work: Callable[[], T]) -> Callable[[], T]:
    """Return `work` for a call inside of `held`: while it runs, Ctrl-C does what it does outside of that block."""

    def call() -> T:
        outside, result, error = max(0, _state.held - 1), None, None
        try:
            _state.held = outside
            if not outside:
                raise_pending()
            result = work()
        except BaseException as raised:
            error = raised
        _state.held = outside + 1  # subtle: Python delivers no signal between the end of the work and this store
        try:
            if error is not None:
                raise error
            return cast(T, result)
        finally:
            del error  # it refers to this frame, and the frame to it

    return call


def hold_from_now_on() -> None:
    """Let Ctrl-C do nothing until the check ends, but `raise_pending` may still be asked."""
    _state.held += 1


def raise_pending() -> None:
    """Raise KeyboardInterrupt if Ctrl-C came since the check began."""
    if _state.pending:
        raise KeyboardInterrupt
