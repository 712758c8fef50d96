"""Host and GPU on one time axis, against sums and hand-made schedules."""

import pytest

from amp_course.speed.figures import clocks_figure
from amp_course.speed.two_clocks import PYTHON, four_steps, schedule


def test_long_ops_follow_each_other_without_a_gap():
    clocks = schedule("", [20e-6] * 10, 5e-6, steps=1)
    assert clocks.seconds == pytest.approx(PYTHON + 5e-6 + 10 * 20e-6)
    gaps = [after[0] - before[1] for before, after in zip(clocks.gpu, clocks.gpu[1:], strict=False)]
    assert gaps == pytest.approx([0.0] * 9)


def test_short_ops_take_as_long_as_their_launches():
    clocks = schedule("", [1e-6] * 10, 5e-6, steps=2)
    assert clocks.seconds == pytest.approx(2 * (PYTHON + 10 * 5e-6) + 1e-6)
    assert clocks.busy == pytest.approx(20e-6 / clocks.seconds)


def test_a_read_waits_for_the_gpu_and_shows_the_python_between_two_steps():
    without = schedule("", [20e-6] * 10, 5e-6)
    read = schedule("", [20e-6] * 10, 5e-6, read=True)
    assert without.waits == () and len(read.waits) == 3
    assert all(
        end == pytest.approx(read.gpu[10 * n + 9][1]) for n, (_, end) in enumerate(read.waits)
    )
    assert read.seconds == pytest.approx(without.seconds + 2 * (PYTHON + 5e-6))


def test_a_slow_loader_decides():
    clocks = schedule("", [20e-6] * 10, 5e-6, loading=1e-3)
    assert clocks.seconds == pytest.approx(3 * (PYTHON + 1e-3) + 2 * 50e-6 + 5e-6 + 200e-6)


def test_only_the_first_of_the_four_keeps_the_gpu_busy():
    large, small, read, loader = four_steps()
    assert large.busy > 0.9 > read.busy > loader.busy > 0.4 and small.busy < 0.1
    assert "GPU is busy" in clocks_figure([large, small]).alt
