"""One bad batch, handled in three ways."""

import pytest

from amp_course.debugging.figures import spike_figure
from amp_course.debugging.spikes import BAD_STEP, record_spike

pytestmark = pytest.mark.slow


def test_clipping_and_skipping_keep_what_was_learned():
    plain, clipped, skipped = (record_spike(guard) for guard in ("none", "clip", "skip"))
    for run in (plain, clipped, skipped):
        assert run.losses[BAD_STEP - 1] > 100 * run.losses[BAD_STEP - 2]
        assert run.norms[BAD_STEP - 1] > 20 * max(run.norms[: BAD_STEP - 1])
    later = slice(BAD_STEP, BAD_STEP + 20)
    assert max(*clipped.losses[later], *skipped.losses[later]) < min(plain.losses[later])
    assert "loss 3" in spike_figure([plain, clipped, skipped]).alt
