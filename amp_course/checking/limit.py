"""Stop code that does not end: a time limit for answers.

In the main thread of a Unix process an interval timer interrupts Python code and blocking calls
such as `time.sleep`. Elsewhere (Windows, other threads) a watchdog thread raises the exception at
the next bytecode. A single long call into C, such as an enormous matmul or
`sum(itertools.count())`, cannot be stopped, and neither can loops in several nested `try` that
catch everything.
"""

from __future__ import annotations

import ctypes
import functools
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import TypeVar, cast

T = TypeVar("T")

# seconds after which the code counts as having swallowed the first attempt
_AGAIN = 0.1
_INSIST = 0.003  # seconds between further attempts
PATIENCE = 3.0  # a check on a busy machine waits this many times an answer's limit


class TimeUp(BaseException):
    """Raised in the middle of an answer that ran too long; no `except Exception` catches it."""


def within(seconds: float, work: Callable[[], T], patience: float = 1.0) -> T:
    """Return `work()`. Once it has run for `seconds`, `TimeUp` is raised in it, again and again
    until it ends.

    Raises TimeUp then, even if the work swallowed that and returned something.

    patience: how many times `seconds` may pass while this thread has computed for less than
              `seconds`, because it waits for a CPU
    """
    in_main = threading.current_thread() is threading.main_thread()
    if in_main and hasattr(signal, "setitimer"):  # its signal arrives in this very thread
        return _by_timer(_Clock(seconds, patience, time.thread_time), work)
    return _by_watchdog(_Clock(seconds, patience, _thread_clock()), work)


def _thread_clock() -> Callable[[], float]:
    """Return a function by which any thread reads how long this one has computed, in seconds."""
    if not hasattr(time, "pthread_getcpuclockid"):
        return time.process_time  # on macOS and Windows a thread can read only its own clock
    return functools.partial(time.clock_gettime, time.pthread_getcpuclockid(threading.get_ident()))


class _Clock:
    """Decides if a thread may go on, by the time it has computed and the time that has passed."""

    def __init__(self, seconds: float, patience: float, computed: Callable[[], float]) -> None:
        self.seconds, self.began = seconds, time.monotonic()
        self.until = self.began + seconds * patience
        self.computed, self.before = computed, computed()

    def has_time(self) -> bool:
        return time.monotonic() < self.until and self.computed() - self.before < self.seconds


def _by_timer(clock: _Clock, work: Callable[[], T]) -> T:
    armed, attempts, late = False, 0, TimeUp()
    handled = sys.exception()

    def on_alarm(signum: int, frame: FrameType | None) -> None:
        nonlocal attempts
        if not armed or clock.has_time():
            return
        attempts += 1
        if attempts == 1:
            raise late
        # The first was swallowed, and this one may be too: more follow until one hits outside of
        # the `try`.
        signal.setitimer(signal.ITIMER_REAL, _odd_moment(attempts), _INSIST)
        raise TimeUp

    old_handler = signal.signal(signal.SIGALRM, on_alarm)
    old_delay, old_interval = signal.setitimer(signal.ITIMER_REAL, clock.seconds, _AGAIN)
    result: T | None = None
    error: BaseException | None = None
    try:
        armed = True  # not earlier: on a busy machine a short limit may be up before this line
        result = work()
    except BaseException as raised:
        error = raised
    armed = False  # subtle: Python delivers no signal between the end of the work and this store
    if attempts > 1:
        _set_handled(handled)
    signal.setitimer(signal.ITIMER_REAL, 0)
    # None: a handler that Python did not set
    signal.signal(signal.SIGALRM, old_handler or signal.SIG_DFL)
    if old_delay:  # another timer (pytest-timeout's, say) goes on where it stood
        left = max(0.01, old_delay - (time.monotonic() - clock.began))
        signal.setitimer(signal.ITIMER_REAL, left, old_interval)
    if attempts:
        raise late  # with the line that it hit first
    try:
        if error is not None:
            raise error
        return cast(T, result)
    finally:
        del error  # it refers to this frame, and the frame to it


def _set_handled(error: BaseException | None) -> None:
    """Set the exception that Python is handling: one raised in the last bytecodes of an `except`
    stays there for ever.
    """
    if sys.exception() is not error:
        ctypes.pythonapi.PyErr_SetHandledException(ctypes.py_object(error))


def _odd_moment(attempts: int) -> float:
    return (1 + 7 * attempts % 40) * 1e-6


def _unset_breaker(throw: Callable[[], object]) -> None:
    """Raise and catch one last exception, for its side effect.

    subtle: an asynchronous exception that is set and then cleared leaves a flag of the interpreter
    set, and only one that is raised clears it. With that flag set, Python 3.11 under
    `sys.setprofile` or `sys.settrace` never enters the next function.
    """
    try:
        throw()
        while True:
            pass
    except TimeUp:
        pass


def _by_watchdog(clock: _Clock, work: Callable[[], T]) -> T:
    # Made beforehand: there must be no other call between a pending exception and `clear`.
    set_exception = ctypes.pythonapi.PyThreadState_SetAsyncExc
    target = ctypes.c_ulong(threading.get_ident())
    throw = functools.partial(set_exception, target, ctypes.py_object(TimeUp))
    clear = functools.partial(set_exception, target, None)
    armed, attempts, done = True, 0, threading.Event()

    def watch() -> None:
        nonlocal attempts
        wait = clock.seconds
        while not done.wait(wait):
            if armed and clock.has_time():
                wait = _AGAIN
            elif armed:
                throw()
                attempts += 1
                wait = _AGAIN if attempts == 1 else _INSIST + _odd_moment(attempts)

    watchdog = threading.Thread(target=watch, daemon=True, name="amp_course time limit")
    try:
        watchdog.start()  # inside: on a busy machine a short limit may be up before it returns
        return work()
    finally:
        armed = False
        clear()  # an exception that was set but not yet raised must not hit the caller later
        while True:
            try:  # the watchdog may have been about to throw again, and that hits us here
                done.set()
                if watchdog.ident is not None:
                    watchdog.join()
                break
            except TimeUp:
                continue
        clear()
        _unset_breaker(throw)
        if attempts and not isinstance(sys.exc_info()[1], TimeUp):
            raise TimeUp
