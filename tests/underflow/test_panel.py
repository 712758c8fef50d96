"""The panel without a browser: its controls drive it, its numbers are those of real rounding."""

import itertools
import re
from statistics import NormalDist

import pytest
import torch

from amp_course.bits.formats import BF16, FORMATS, FP4_E2M1
from amp_course.kit.markup import percent
from amp_course.underflow.panel import RangeExplorer
from amp_course.underflow.zones import zone_histogram

QUANTILES = torch.tensor(
    [NormalDist().inv_cdf((number + 0.5) / 50_000) for number in range(50_000)], dtype=torch.float64
)
ENDS = [(-140, 40), (1, 12), (0, 24)]  # of centre, spread and loss scale


@pytest.fixture
def panel():
    return RangeExplorer()


def shown(panel):
    """The percentages that are shown."""
    text = re.sub(r"<svg.*?</svg>", "", panel.html, flags=re.S)
    return dict(re.findall(r"(lost|subnormal|normal|overflow) <b>([^<]*)</b>", text))


def test_each_control_changes_what_is_shown(panel):
    panel.centre.value, panel.spread.value = -30, 9
    for control, value in ((panel.loss_scale, 16), (panel.format, BF16)):
        before = shown(panel)
        control.value = value
        assert shown(panel) != before
    assert shown(panel)["normal"] == "100.0 %"


def test_the_panel_can_do_what_the_reader_is_asked_to_try(panel):
    panel.centre.value = -24
    assert panel.histogram.share("lost") > 0.2
    panel.loss_scale.value = 16
    assert panel.histogram.share("lost") < 0.001 and panel.histogram.share("overflow") < 0.001
    panel.loss_scale.value, panel.format.value = 0, BF16
    assert panel.histogram.share("normal") == 1


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
def test_every_format_is_counted_as_by_rounding_at_every_end_of_the_sliders_and_between(panel, fmt):
    panel.format.value = fmt
    edge = fmt.min_exponent - fmt.significand_bits - 1
    settings = set(itertools.product(*ENDS)) | {
        (centre, spread, scale)
        for centre in (edge, fmt.min_exponent, fmt.max_exponent + 1, -20)
        for spread, scale in ((1, 0), (3, 2), (8, 7))
        if centre in panel.centre.options
    }
    for centre, spread, scale in settings:
        panel.centre.value, panel.spread.value, panel.loss_scale.value = centre, spread, scale
        numbers = torch.exp2(QUANTILES * spread + centre)
        assert panel.histogram == zone_histogram(numbers, fmt, 2.0**scale), (centre, spread, scale)
        assert panel.html.startswith("<div role") and "nan" not in panel.html.lower()
        assert ": 0 " not in panel.html  # no bar for a zone with nothing in it


def test_the_sliders_end_where_everything_is_lost_or_overflows(panel):
    panel.centre.value = panel.centre.options[0]
    assert shown(panel)["lost"] == "100.0 %"
    panel.format.value = FP4_E2M1
    panel.centre.value = panel.centre.options[-1]
    assert shown(panel)["overflow"] == "100.0 %"
    with pytest.raises(ValueError, match="no option of 'centre, 2 to the'"):
        panel.centre.value = 41


def test_no_share_is_rounded_to_none_or_all():
    assert [percent(share) for share in (0.0, 1e-6, 0.0123, 0.99999, 1.0)] == [
        "0.0 %",
        "< 0.1 %",
        "1.2 %",
        "> 99.9 %",
        "100.0 %",
    ]
