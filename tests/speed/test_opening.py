"""The opening: a step's kernels and time on a published card,
and the width from which AMP is faster.
"""

import pytest
import torch

from amp_course.speed.cards import find_card
from amp_course.speed.opening import BATCH, step_calls, three_layers

A100 = find_card("A100 SXM 40 GB").roofline()


def test_a_narrow_step_is_its_launches_and_a_wide_one_its_flops():
    opening = three_layers(A100, widths=(4096, 256))
    narrow, wide = opening.pairs
    assert (narrow.width, narrow.fp32.kernels, narrow.amp.kernels) == (256, 18, 33)
    assert narrow.fp32.seconds_by == pytest.approx({"launch": 18 * 5e-6, "memory": 0, "compute": 0})
    assert narrow.amp.seconds == pytest.approx(33 * 5e-6)
    assert narrow.speedup == pytest.approx(18 / 33)
    # Three forward, three for the weights' gradients, two for the inputs': the first layer's input
    # needs none.
    assert wide.fp32.seconds_by["compute"] == pytest.approx(8 * 2 * BATCH * 4096**2 / 19.5e12)
    assert wide.amp.seconds_by["compute"] == pytest.approx(8 * 2 * BATCH * 4096**2 / 312e12)
    assert 7 < wide.speedup < 8
    assert (opening.name, opening.fmt) == ("A100 SXM 40 GB", "bf16")


def test_the_crossing_is_the_first_multiple_of_8_at_which_amp_is_faster():
    crossing = three_layers(A100, widths=(512, 544)).crossing
    assert 512 < crossing < 1024 and crossing % 8 == 0
    at, before = (
        three_layers(A100, widths=(width,)).pairs[0].speedup for width in (crossing, crossing - 8)
    )
    assert before <= 1 < at


def test_a_card_without_fast_units_never_gains():
    opening = three_layers(find_card("GTX 1650").roofline(), torch.float16, widths=(256, 8192))
    assert opening.crossing is None and max(pair.speedup for pair in opening.pairs) < 1


def test_what_cannot_be_priced():
    with pytest.raises(KeyError, match="bf16"):
        three_layers(find_card("T4").roofline(), widths=(256,))


def test_counts_the_same_wherever_it_is_called():
    with torch.no_grad(), torch.inference_mode():
        assert len(step_calls(64, torch.bfloat16)) == 33
