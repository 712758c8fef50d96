"""Each of the eight trainings shows what exercise 12 says of it."""

import math

import pytest

from amp_course.debugging.curves import FAULTS, record_curves
from amp_course.debugging.exercises.name_curves import SHOWN
from amp_course.debugging.figures import curves_figure

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def curves():
    recorded = record_curves()
    return {FAULTS[letter]: curve for letter, curve in recorded.items()}


def falls(losses):
    finite = [loss for loss in losses if math.isfinite(loss)]
    return sum(finite[-10:]) / 10 < 0.2 * finite[0]


def test_every_fault_has_words():
    assert set(SHOWN) == set(FAULTS.values())


def test_the_sound_one_falls_to_the_end(curves):
    curve = curves["nothing"]
    assert falls(curve.losses) and all(map(math.isfinite, curve.losses))
    assert curve.scales[-1] > curve.scales[0] and curve.distances[-1] > 1.1 * curve.distances[60]


def test_two_losses_never_fall_and_only_the_weights_tell_them_apart(curves):
    cached, clipped = curves["autocast-left-open"], curves["clipped-while-scaled"]
    for curve in (cached, clipped):
        assert max(curve.losses) - min(curve.losses) < 0.2 and curve.scales[-1] > curve.scales[0]
    assert cached.distances[-1] > curves["nothing"].distances[-1] > 1e4 * clipped.distances[-1]


def test_scaled_gradients_are_lost_at_once(curves):
    curve = curves["still-scaled"]
    assert not any(map(math.isfinite, curve.losses[3:])) and set(curve.scales) == {2.0**16}
    assert curve.distances[0] > 1000


def test_a_high_rate_stays_finite(curves):
    curve = curves["learning-rate-too-high"]
    assert all(map(math.isfinite, curve.losses)) and curve.losses[-1] > 20 * curve.losses[0]
    assert curve.distances[-1] > 10 and min(curve.scales) < curve.scales[-1]


def test_an_inf_that_stays_stops_the_training(curves):
    curve = curves["never-cleared"]
    assert all(map(math.isfinite, curve.losses)) and curve.losses[0] > 2 * curve.losses[-1] > 0.5
    assert curve.scales[-1] < 1e-9 and curve.distances[-1] == curve.distances[-60]


def test_bad_batches_are_skipped(curves):
    curve = curves["nan-in-data"]
    assert sum(not math.isfinite(loss) for loss in curve.losses) == 3 and falls(curve.losses)
    assert all(curve.scales[n - 1] < curve.scales[n - 2] for n in (40, 70, 71))


def test_outputs_that_outgrow_fp16_end_it(curves):
    curve = curves["beyond-fp16"]
    assert not any(map(math.isfinite, curve.losses[-30:])) and all(
        map(math.isfinite, curve.losses[:50])
    )
    assert curve.scales[-1] < 1 and curve.distances[-1] == curve.distances[-30]


def test_the_figure_says_what_it_shows(curves):
    figure = curves_figure({"A": curves["nothing"], "B": curves["beyond-fp16"]})
    assert "A: loss 2.3 to" in figure.alt and "losses are inf or NaN" in figure.alt
