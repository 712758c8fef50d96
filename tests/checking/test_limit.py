"""The time limit: endless code is stopped, and the process's own timers go on as they were."""

# ruff: noqa: E722, SIM105  (code that swallows all there is, is what these tests are about)

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from amp_course.checking import Exercise
from amp_course.checking.limit import PATIENCE, TimeUp, within

pytestmark = [
    pytest.mark.usefixtures("unchanged"),
    # What stops a thread may come while the garbage collector runs a callback of Hypothesis.
    pytest.mark.filterwarnings("ignore:Exception ignored in.*gc_callback"),
]

needs_timer = pytest.mark.skipif(
    not hasattr(signal, "setitimer"), reason="this system has no interval timer"
)


def busy():
    while True:
        pass


def sleeping():
    time.sleep(1000)


def short_sleeps():
    while True:
        time.sleep(0.01)


def bare_except():
    while True:
        try:
            pass
        except:
            pass


def except_base_exception():
    while True:
        try:
            time.sleep(1000)
        except BaseException:
            continue


def numbers() -> Iterator[int]:
    while True:
        yield 1


def endless_generator():
    return sum(numbers())


def gives_up_when_stopped():
    try:
        busy()
    except BaseException:
        return "as if nothing had been"


def makes_another_error_of_it():
    try:
        busy()
    except BaseException as error:
        raise ValueError("no") from error


EVERYWHERE = [
    busy,
    short_sleeps,
    bare_except,
    endless_generator,
    gives_up_when_stopped,
    makes_another_error_of_it,
]
MAIN_THREAD = [sleeping, except_base_exception]


@pytest.fixture
def no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep no record of what callbacks of the garbage collector raise: the timer may fire there."""
    monkeypatch.setattr(sys, "unraisablehook", lambda found: None)


@needs_timer
@pytest.mark.usefixtures("no_record")
@pytest.mark.parametrize("endless", EVERYWHERE + MAIN_THREAD)
def test_endless_code_is_stopped(endless: Callable[[], Any]) -> None:
    began = time.monotonic()
    with pytest.raises(TimeUp):
        within(0.05, endless)
    assert 0.05 <= time.monotonic() - began < 5
    assert not issubclass(TimeUp, Exception)  # which answers catch


@needs_timer
@pytest.mark.usefixtures("no_record")
@pytest.mark.parametrize("endless", MAIN_THREAD)
def test_no_exception_counts_as_handled_afterwards(endless: Callable[[], Any]) -> None:
    with pytest.raises(TimeUp):
        within(0.05, endless)
    assert sys.exception() is None
    try:
        raise KeyError
    except KeyError as error:
        with pytest.raises(TimeUp):
            within(0.05, endless)
        assert sys.exception() is error
    assert sys.exception() is None


def in_another_thread(work: Callable[[], Any]) -> Any:
    """Return what work returns, or the exception that it raises; no watchdog may be left."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:
            found.append(error)

    worker = threading.Thread(target=run)
    worker.start()
    worker.join(20)
    assert "amp_course time limit" not in {thread.name for thread in threading.enumerate()}
    return found[0]


@pytest.mark.parametrize("endless", EVERYWHERE)
def test_endless_code_is_stopped_in_another_thread(endless: Callable[[], Any]) -> None:
    assert type(in_another_thread(lambda: within(0.05, endless))) is TimeUp


def test_work_that_ends_with_the_exception_pending_in_another_thread() -> None:
    """`recv` waits in C past the limit and raises, with the watchdog's exception already set."""
    left, right = socket.socketpair()
    with left, right:
        left.settimeout(0.2)
        assert type(in_another_thread(lambda: within(0.05, lambda: left.recv(1)))) is TimeUp


def lines_of(error: BaseException) -> list[tuple[str, int]]:
    found, traceback = [], error.__traceback__
    while traceback:
        found.append((traceback.tb_frame.f_code.co_name, traceback.tb_lineno))
        traceback = traceback.tb_next
    return found


@pytest.mark.parametrize("endless", [busy, gives_up_when_stopped, makes_another_error_of_it])
def test_the_traceback_leads_to_the_loop(endless: Callable[[], Any]) -> None:
    with pytest.raises(TimeUp) as caught:
        within(0.1, endless)
    first = busy.__code__.co_firstlineno
    assert any(
        name == "busy" and first < line <= first + 2 for name, line in lines_of(caught.value)
    )


@pytest.mark.parametrize("in_main", [pytest.param(True, marks=needs_timer), False])
def test_code_that_waits_for_its_turn_has_more_time_and_an_endless_loop_has_not(
    in_main: bool,
) -> None:
    def work() -> str:
        waited = within(0.05, lambda: time.sleep(0.2) or "waited", patience=1000)
        with pytest.raises(TimeUp):
            within(0.05, busy, patience=1000)
        with pytest.raises(TimeUp):
            within(0.05, short_sleeps, patience=4)
        return waited

    assert (work() if in_main else in_another_thread(work)) == "waited"


def test_the_limit_of_a_check_is_what_chapter_00_says() -> None:
    book = json.loads((Path(__file__).parents[2] / "notebooks/00_start.ipynb").read_text("utf-8"))
    text = " ".join(" ".join("".join(cell["source"]) for cell in book["cells"]).split())
    usual, most = f"{Exercise.seconds:g}", f"{Exercise.seconds * PATIENCE:g}"
    assert (
        f"stops an endless loop after about {usual} seconds ({most} if the machine is busy or your "
        "code only waits), or as soon as you press ■" in text
    )


def test_what_ends_in_time_is_handed_on() -> None:
    assert within(5, lambda: [1, 2]) == [1, 2]
    with pytest.raises(ZeroDivisionError):
        within(5, lambda: 1 / 0)


def test_nothing_is_thrown_in_another_thread_after_the_work_is_done() -> None:
    def run() -> str:
        for n in range(20):  # the end of the work and of the time, at once
            with contextlib.suppress(TimeUp):
                within(0.01, lambda n=n: time.sleep(0.0095 + n * 3e-5))
        time.sleep(0.05)
        return "whole"

    assert in_another_thread(run) == "whole"


@needs_timer
def test_a_machine_so_busy_that_the_time_is_up_before_the_work_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Then nothing may go off later: not the watchdog, not the timer."""
    start, setitimer = threading.Thread.start, signal.setitimer

    def slow_start(thread: threading.Thread) -> None:
        start(thread)
        if thread.name == "amp_course time limit":
            time.sleep(0.05)

    def slow_setitimer(which: int, seconds: float, interval: float = 0.0) -> tuple[float, float]:
        found = setitimer(which, seconds, interval)
        if seconds == 0.01:
            time.sleep(0.05)
        return found

    def run() -> str:
        with contextlib.suppress(TimeUp):
            within(0.01, lambda: None)
        time.sleep(0.15)
        return "whole"

    monkeypatch.setattr(threading.Thread, "start", slow_start)
    monkeypatch.setattr(signal, "setitimer", slow_setitimer)
    before = signal.getsignal(signal.SIGALRM)
    assert run() == "whole"
    assert signal.getsignal(signal.SIGALRM) == before
    assert in_another_thread(run) == "whole"


@needs_timer
def test_the_end_of_the_work_and_of_the_time_at_once() -> None:
    for n in range(30):
        with contextlib.suppress(TimeUp):
            within(0.005, lambda n=n: time.sleep(0.0045 + n * 3e-5))
        assert signal.getitimer(signal.ITIMER_REAL)[1] != 0.1
    time.sleep(0.15)


@pytest.fixture
def alarms() -> Iterator[list[float]]:
    """Put a timer of the test's own in the place of pytest-timeout's, and record when it fires."""
    times: list[float] = []

    def on_alarm(signum: int, frame: FrameType | None) -> None:
        times.append(time.monotonic())

    old_handler = signal.signal(signal.SIGALRM, on_alarm)
    old_timer = signal.setitimer(signal.ITIMER_REAL, 0)
    yield times
    signal.signal(signal.SIGALRM, old_handler)
    signal.setitimer(signal.ITIMER_REAL, *old_timer)


@needs_timer
@pytest.mark.parametrize("work", [lambda: time.sleep(0.1), busy])
def test_another_timer_goes_on_where_it_stood(alarms: list[float], work: Callable[[], Any]) -> None:
    handler = signal.getsignal(signal.SIGALRM)
    signal.setitimer(signal.ITIMER_REAL, 60, 7)
    with contextlib.suppress(TimeUp):
        within(0.1 if work is busy else 5, work)
    left, interval = signal.getitimer(signal.ITIMER_REAL)
    assert 50 < left < 59.95
    assert interval == 7
    assert signal.getsignal(signal.SIGALRM) is handler
    assert alarms == []


@needs_timer
def test_another_timer_that_was_due_meanwhile_fires_at_once(alarms: list[float]) -> None:
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    within(5, lambda: time.sleep(0.1))
    ended = time.monotonic()
    time.sleep(0.1)
    assert len(alarms) == 1
    assert ended - 0.02 < alarms[0] < ended + 0.25


@needs_timer
def test_limits_inside_of_limits() -> None:
    def inner() -> str:
        with pytest.raises(TimeUp):
            within(0.05, busy)
        return "went on"

    assert within(5, inner) == "went on"
    with pytest.raises(TimeUp):
        within(0.2, lambda: inner() and busy())


def test_ctrl_c_interrupts() -> None:
    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        within(30, busy)
    timer.join()
    assert time.monotonic() - began < 5


@pytest.mark.slow
def test_the_watchdog_leaves_a_process_in_which_profiling_works():
    """On Python 3.11 a flag that it left up let the next function under `sys.setprofile` hang."""
    code = """
import sys, time
from amp_course.checking import limit

def late():
    while True:
        time.sleep(0.01)

assert limit._by_watchdog(limit._Clock(9, 1, limit._thread_clock()), lambda: 3) == 3
try:
    limit._by_watchdog(limit._Clock(0.1, 1, limit._thread_clock()), late)
except limit.TimeUp:
    print("time up")
seen = []
sys.setprofile(lambda frame, event, argument: seen.append(event))
(lambda: None)()
sys.setprofile(None)
print("profiled", "call" in seen)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.split("\n")[:2] == ["time up", "profiled True"], done.stderr
