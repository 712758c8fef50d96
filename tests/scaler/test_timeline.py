"""A recorded run: its skips are the optimizer's, its scales the scaler's,
and an injected overflow shows.
"""

import math

import pytest
import torch
from torch import nn

from amp_course.kit.data import digit_batches, digits
from amp_course.scaler.dynamic import DynamicScaler
from amp_course.scaler.figures import timeline_figure
from amp_course.scaler.timeline import Timeline, record_timeline


def fresh():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def run(scaler, steps=40, **options):
    batches = digit_batches(digits(), 64, steps=steps, seed=1)
    return record_timeline(*fresh(), scaler, batches, **options)


def test_an_outlier_is_skipped_and_halves_the_scale():
    timeline = run(DynamicScaler("cpu"), overflow_at={7})
    assert [step for step, skipped in enumerate(timeline.skipped) if skipped] == [7]
    assert timeline.scales[7] == 2.0**16 and timeline.scales[8] == 2.0**15
    assert not math.isfinite(timeline.losses[7])
    assert timeline.losses[-1] < 0.5 * timeline.losses[0]  # it trained on


def test_a_scale_too_large_backs_off_and_one_too_small_grows():
    high = run(DynamicScaler("cpu", init_scale=2.0**24), steps=8)
    assert high.skipped[0] and not high.skipped[-1] and high.scales[-1] < 2.0**22
    low = run(DynamicScaler("cpu", init_scale=1.0, growth_interval=2), steps=8)
    assert low.scales == (1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 8.0, 8.0) and not any(low.skipped)


def test_both_scalers_make_the_same_timeline():
    options = {"init_scale": 2.0**20, "growth_interval": 5}
    kinds = DynamicScaler, torch.amp.GradScaler
    ours, theirs = (run(kind("cpu", **options), overflow_at={9}) for kind in kinds)
    assert repr(ours) == repr(theirs) and sum(ours.skipped) >= 2


def test_no_batch_is_refused_and_the_hook_is_gone():
    model, optimizer = fresh()
    with pytest.raises(ValueError, match="no batch"):
        record_timeline(model, optimizer, DynamicScaler("cpu"), [])
    assert not optimizer._optimizer_step_post_hooks


def test_the_figure_draws_each_step_and_marks_each_skip():
    timeline = Timeline((4.0, 4.0, 2.0), (1.0, math.nan, 0.5), (False, True, False))
    above, below = timeline_figure(timeline, {1: "outlier"}).axes
    assert above.lines[0].get_ydata().tolist() == [4.0, 4.0, 2.0]
    assert above.lines[1].get_xdata() == [1] and "outlier" in [t.get_text() for t in below.texts]
    timeline_figure(Timeline((4.0,), (1.0,), (False,)))._repr_png_()
