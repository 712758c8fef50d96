"""The clock: what Timing says of its samples, when time_step waits for the device,
what StepTimer costs.
"""

import subprocess
import sys
import threading
import time
from collections import Counter
from typing import ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from amp_course.kit import measure
from amp_course.kit.measure import (
    CpuWait,
    StepTimer,
    Timing,
    busy_text,
    order_of_round,
    read_waits,
    seconds_text,
    time_step,
    too_busy,
)


@settings(deadline=None)
@given(st.lists(st.floats(1e-6, 10), min_size=1, max_size=30))
def test_quartiles_are_those_of_torch(samples: list[float]) -> None:
    timing = Timing(tuple(samples))
    expected = torch.quantile(
        torch.tensor(samples, dtype=torch.float64), torch.tensor([0.25, 0.5, 0.75]).double()
    )
    found = torch.tensor([timing.q1, timing.median, timing.q3], dtype=torch.float64)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("samples", "text"),
    [
        ((0.0123,), "12.3 ms (1 step)"),
        ((0.012, 0.0123, 0.013), "12.3 ms (quartiles 12.2 to 12.7, 3 steps)"),
        ((0.99999, 0.99999, 2.0), "1.00 s (quartiles 1.00 to 1.50, 3 steps)"),
        ((2.5e-6, 2.5e-6), "2.50 µs (quartiles 2.50 to 2.50, 2 steps)"),
    ],
)
def test_a_timing_reads_well(samples: tuple[float, ...], text: str) -> None:
    assert str(Timing(samples)) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(90.0, "90.0 s"), (0.01234, "12.3 ms"), (0.0009999, "1.00 ms"), (3e-9, "0.00 µs")],
)
def test_seconds_text(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


def test_time_step_counts_its_calls() -> None:
    calls = []
    timing = time_step(lambda: calls.append(1), device="cpu", warmup=2, repeats=5)
    assert len(calls) == 7
    assert len(timing.samples) == 5


@pytest.mark.parametrize(
    ("costs", "limit", "clocked"),
    [
        # the warm-up counts: 9 + 1, one more, and no time left
        ([9.0, 1.0, 1.0, 1.0, 1.0, 1.0], 11.5, [1.0]),
        ([1.0] * 6, 60.0, [1.0] * 4),
        ([3.0, 2.0, 1.0], 6.5, [2.0]),  # it ends in the warm-up: the last step is all there is
        ([7.0], 0.0, [7.0]),
        # a slow first step says nothing of the others
        ([3.0, 0.125, 0.125, 0.125, 0.125, 0.125], 4.0, [0.125] * 4),
    ],
)
def test_max_seconds_is_a_limit_for_all_steps(
    monkeypatch: pytest.MonkeyPatch, costs: list[float], limit: float, clocked: list[float]
) -> None:
    now = [0.0]
    left = iter(costs)
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def step() -> None:
        now[0] += next(left)

    assert (
        list(time_step(step, device="cpu", warmup=2, repeats=4, max_seconds=limit).samples)
        == clocked
    )
    assert now[0] <= max(limit, costs[0])


def test_the_device_is_idle_when_the_clock_starts_and_when_it_stops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events: list[str] = []
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda device: events.append("wait"))
    monkeypatch.setattr(time, "perf_counter", lambda: float(events.append("clock") or len(events)))
    time_step(lambda: events.append("step"), device="cuda", warmup=1, repeats=2)
    assert events == 3 * ["wait", "clock", "step", "wait", "clock"]


def test_time_step_refuses_what_a_step_returned() -> None:
    with pytest.raises(TypeError, match="pass the function itself"):
        time_step(3, device="cpu")  # type: ignore[arg-type]


def test_step_timer_gives_each_step_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([1.0, 1.25, 5.0, 7.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    timer = StepTimer("cpu")
    for _ in range(2):
        timer.start()
        timer.stop()
    assert timer.seconds() == [0.25, 2.0]


def test_step_timer_refuses_misuse() -> None:
    timer = StepTimer("cpu")
    with pytest.raises(RuntimeError, match=r"stop\(\) without start\(\)"):
        timer.stop()
    timer.start()
    with pytest.raises(RuntimeError, match=r"start\(\) twice"):
        timer.start()
    timer.stop()
    assert len(timer.seconds()) == 1


class FakeEvent:
    """Stand in for torch.cuda.Event: its time is a counter, in milliseconds."""

    clock = 0
    waited_for: ClassVar[list[int]] = []

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self, stream: object) -> None:
        FakeEvent.clock += 7
        self.time = FakeEvent.clock

    def synchronize(self) -> None:
        FakeEvent.waited_for.append(self.time)

    def elapsed_time(self, other: "FakeEvent") -> float:
        return float(other.time - self.time)


def test_step_timer_waits_once_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[object] = []
    monkeypatch.setattr(torch.accelerator, "synchronize", waits.append)
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    timer = StepTimer("cuda")
    for _ in range(3):
        timer.start()
        timer.stop()
    assert not waits
    assert timer.seconds() == [0.007] * 3
    assert len(waits) == 1


def test_step_timer_lets_a_gpu_fall_behind_by_so_many_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    monkeypatch.setattr(FakeEvent, "clock", 0)
    monkeypatch.setattr(FakeEvent, "waited_for", [])
    timer = StepTimer("cuda")
    for _ in range(4):  # the steps end at 14, 28, 42 and 56
        timer.start()
        timer.stop()
        timer.wait(2)
    assert FakeEvent.waited_for == [14, 28]


class FakeMachine:
    """A clock and the kernel's counts, both of which a test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.waits = 100.0, {"main": 5_000_000_000}
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(measure, "read_waits", lambda: dict(self.waits))

    def pass_time(self, seconds: float, **waited: float) -> None:
        self.now += seconds
        for thread, more in waited.items():
            self.waits[thread] = self.waits.get(thread, 0) + int(more * 1e9)


def test_the_share_is_that_of_the_thread_that_waited_longest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine, wait = FakeMachine(monkeypatch), CpuWait()
    with wait:
        machine.pass_time(2.0, main=0.5, worker=1.5)
    machine.pass_time(50.0, main=50.0)  # between the stretches
    with wait:
        machine.pass_time(2.0, main=0.1)
    assert wait.share == pytest.approx(1.6 / 4)


def test_a_system_that_does_not_count_is_unknown_and_not_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(measure, "read_waits", lambda: None)
    timing = time_step(lambda: None, device="cpu", repeats=1)
    assert timing.waited is None
    assert (timing.busy, too_busy(timing.waited), "waiting" in str(timing)) == ("", False, False)


@pytest.mark.parametrize(("waited", "busy"), [(0.19, False), (0.21, True)])
def test_a_fifth_of_the_time_is_too_much(
    monkeypatch: pytest.MonkeyPatch, waited: float, busy: bool
) -> None:
    machine = FakeMachine(monkeypatch)
    timing = time_step(
        lambda: machine.pass_time(1.0, main=waited), device="cpu", warmup=0, repeats=10
    )
    assert timing.waited == pytest.approx(waited)
    assert too_busy(timing.waited) is bool(timing.busy) is busy
    assert (f"{waited:.0%} of it waiting for a CPU" in str(timing)) is busy
    timer = StepTimer("cpu")
    for _ in range(3):
        timer.start()
        machine.pass_time(1.0, main=waited)
        timer.stop()
    assert timer.waited is None
    timer.seconds()
    assert timer.waited == pytest.approx(waited)


@pytest.mark.parametrize(
    ("mine", "other", "text"),
    [
        (Timing((1.0, 1.1, 1.2)), Timing((2.0, 2.2, 2.4)), "0.50 times as long"),
        (
            Timing((1.0, 1.3, 1.6)),
            Timing((1.1, 1.2, 1.5)),
            "no difference that this machine can show (1.08 ",
        ),
        (
            Timing((1.0,), 0.1),
            Timing((2.0,), 0.4),
            "too busy to tell: this process waited for a CPU 40% of",
        ),
    ],
)
def test_two_timings_are_compared_as_far_as_they_go(mine: Timing, other: Timing, text: str) -> None:
    assert text in mine.compared_with(other)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux counts this")
def test_the_kernel_counts_the_threads_of_this_process() -> None:
    began, ends = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: (began.set(), ends.wait()))
    thread.start()
    try:
        began.wait()
        waits = read_waits()
    finally:
        ends.set()
        thread.join()
    if waits is None:
        pytest.skip("this kernel does not count")
    assert f"/proc/self/task/{thread.native_id}" in waits
    assert all(isinstance(waited, int) and waited >= 0 for waited in waits.values())


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux counts this")
@pytest.mark.parametrize("threads", [1, 2])
def test_next_to_another_program_on_one_core_a_process_is_starved(threads: int) -> None:
    endless = [
        sys.executable,
        "-c",
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\nwhile True: pass",
    ]
    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "import torch; from amp_course.kit.measure import time_step\n"
        f"torch.set_num_threads({threads}); x = torch.randn(512, 512)\n"
        "print(time_step(lambda: x @ x, device='cpu', repeats=60).waited)"
    )
    with subprocess.Popen(endless) as other:
        try:
            text = subprocess.run(
                [sys.executable, "-c", code], capture_output=True, text=True, check=True
            ).stdout
        finally:
            other.kill()
    if text.strip() == "None":
        pytest.skip("this kernel does not count")
    assert 0.3 < float(text) <= 1
    assert busy_text(float(text)).startswith("This machine was too busy to tell")


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_each_side_has_every_place_equally_often(count: int) -> None:
    rounds = [order_of_round(range(count), number) for number in range(2 * count)]
    assert all(sorted(order) == list(range(count)) for order in rounds)
    for place in zip(*rounds, strict=True):
        assert Counter(place) == dict.fromkeys(range(count), 2)
