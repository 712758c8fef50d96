"""The clock on CUDA: events agree with a synchronised clock and with torch's own benchmark,
and cost the loop no wait.
"""

import statistics
import time

import pytest
import torch
from torch.utils import benchmark

from amp_course.kit.measure import StepTimer, synchronize, time_step


def matmul_seconds_by_events(x, count=30):
    timer = StepTimer("cuda")
    for _ in range(count):
        timer.start()
        x @ x
        timer.stop()
    return statistics.median(timer.seconds()[3:])


def test_events_the_clock_and_torchs_benchmark_agree(device):
    x = torch.randn(8192, 8192, device=device)
    by_events = matmul_seconds_by_events(x)
    by_clock = time_step(lambda: x @ x, device=device).median
    by_torch = benchmark.Timer("x @ x", globals={"x": x}).blocked_autorange(min_run_time=0.5).median
    assert by_events == pytest.approx(by_torch, rel=0.2)
    assert by_clock == pytest.approx(by_torch, rel=0.2)


def test_a_timer_in_the_loop_waits_for_nothing(device):
    """Queueing is quick, the work is not: if `start` or `stop` waited,
    the loop would take as long as the work.
    """
    x = torch.randn(8192, 8192, device=device)
    x @ x
    synchronize(device)
    timer = StepTimer(device)
    began = time.perf_counter()
    for _ in range(30):
        timer.start()
        x @ x
        timer.stop()
    queued = time.perf_counter() - began
    worked = sum(timer.seconds())
    assert queued < worked / 3


def test_without_synchronising_the_clock_measures_the_queue(device):
    """The chapter's first way to fool yourself is one."""
    x = torch.randn(8192, 8192, device=device)
    honest = time_step(lambda: x @ x, device=device).median
    synchronize(device)
    samples = []
    for _ in range(5):
        began = time.perf_counter()
        x @ x
        samples.append(time.perf_counter() - began)
    synchronize(device)
    assert min(samples) < honest / 3


def test_synchronize_waits(device):
    x = torch.randn(8192, 8192, device=device)
    end = torch.cuda.Event()
    for _ in range(20):
        x @ x
    end.record()
    synchronize(device)
    assert end.query()
