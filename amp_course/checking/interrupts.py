"""Ctrl-C during a check: KeyboardInterrupt at once, but never while something is being put back.

A check takes the signal over (`noted`). Where half a job would do harm, `held` puts the interrupt
off until the job is done.
Outside of a check, in other threads than the main one, and where somebody else handles the signal,
nothing here does anything.
"""

from __future__ import annotations

import _thread
import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TypeVar, cast

T = TypeVar("T")


class _State:
    held = 0  # how many jobs are running that must not be left half done
    pending = False  # Ctrl-C came, whatever became of the KeyboardInterrupt
    hurry: Callable[[], object] | None = None  # ends what swallows a KeyboardInterrupt


_state = _State()


_LATER = 0.01  # seconds until another attempt, where an exception would be printed and forgotten
_WEAKREF = ("_weakrefset.py", "weakref.py")


def _note(signum: int, frame: FrameType | None) -> None:
    _state.pending = True
    if _state.held:
        return
    if _is_forgotten(frame):
        threading.Thread(target=_try_later, daemon=True, name="amp_course interrupts").start()
        return
    if _state.hurry is not None:
        _state.hurry()
    raise KeyboardInterrupt


def _try_later() -> None:
    time.sleep(_LATER)
    if _state.pending:  # else the check has ended meanwhile
        _thread.interrupt_main()


def _is_forgotten(frame: FrameType | None) -> bool:
    """Return True in a `__del__` or the callback of a weak reference.

    Python prints what is raised there, and goes on.
    """
    while frame is not None:
        code = frame.f_code
        if code.co_name == "__del__" or code.co_filename.endswith(_WEAKREF):
            return True
        frame = frame.f_back
    return False


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
    before = _state.held
    _state.held = before + 1
    try:
        yield
    finally:
        _state.held = before
    if not before:
        raise_pending()


def released(work: Callable[[], T]) -> Callable[[], T]:
    """Return `work` for a call inside `held`: while it runs, Ctrl-C does what it does outside."""

    if not _in_main():
        return work

    def call() -> T:
        outside, result, error = max(0, _state.held - 1), None, None
        try:
            _state.held = outside
            if not outside:
                raise_pending()
            result = work()
        except BaseException as raised:
            error = raised
        # subtle: Python delivers no signal between the end of the work and this store
        _state.held = outside + 1
        try:
            if error is not None:
                raise error
            return cast(T, result)
        finally:
            del error  # it refers to this frame, and the frame to it

    return call


def hold_from_now_on() -> None:
    """Let Ctrl-C do nothing until the check ends, but `raise_pending` may still be asked."""
    if _in_main():
        _state.held += 1


def is_pending() -> bool:
    """Return True if Ctrl-C came since the check began."""
    return _state.pending


def set_hurry(hurry: Callable[[], object] | None) -> Callable[[], object] | None:
    """Set what is called at each Ctrl-C that is not held; return what it was."""
    before, _state.hurry = _state.hurry, hurry
    return before


def raise_pending() -> None:
    """Raise KeyboardInterrupt if Ctrl-C came since the check began."""
    if _state.pending and _in_main():
        raise KeyboardInterrupt
