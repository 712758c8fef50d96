"""Larger batches: the one that is said to fit does, and the figure draws what was measured."""

import pytest

from amp_course.speed.experiments import batch_sizes
from amp_course.speed.experiments.figures import batch_sizes_figure
from amp_course.speed.experiments.interleaved import Comparison


@pytest.fixture(scope="module")
def found():
    return batch_sizes.batch_sizes(seconds=0.02)


def test_the_batch_that_is_said_to_fit_does(monkeypatch, found):
    peaks = []
    monkeypatch.setattr(batch_sizes, "compare", lambda sides, device, seconds: None)
    monkeypatch.setattr(
        batch_sizes, "judge_batch_sizes", lambda _, sizes, found: peaks.append(found)
    )
    monkeypatch.setattr(batch_sizes, "SIZES", {"cpu": (found.largest, int(1.1 * found.largest))})
    batch_sizes.batch_sizes()
    fits, more = peaks[0]["AMP"]
    assert fits <= 1.01 * found.peaks["fp32"][-1] < more


def test_on_a_busy_machine_only_memory_is_compared(found):
    seconds = {side: (0.001,) * 5 for side in found.comparison.seconds}
    base = dict.fromkeys(seconds, "fp32, batch 16")
    quiet, busy = (
        batch_sizes.judge_batch_sizes(
            Comparison(seconds, base, {}, waited), found.batches, found.peaks
        )
        for waited in (0.0, 0.5)
    )
    assert f"room for {found.largest:,}" in busy.sentence
    assert "samples a second" not in busy.sentence
    words = "16.0 times as many samples a second in fp32, and on 16.0 times as many"
    assert words in quiet.sentence
    assert "too busy to tell" in str(busy) and "too busy" not in str(quiet)
    lines = batch_sizes_figure(quiet).axes[0].lines
    assert [list(line.get_ydata()) for line in lines] == [[16_000, 64_000, 256_000]] * 2
