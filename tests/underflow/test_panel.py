"""The panel without a browser: its controls drive it, its numbers are those of real rounding."""

import itertools
import re
from statistics import NormalDist

import pytest
import torch

from amp_course.bits.formats import BF16, FORMATS, FP4_E2M1, FP8_E4M3, FP16
from amp_course.underflow.panel import RangeExplorer
from amp_course.underflow.panel_html import percent
from amp_course.underflow.zones import ZONES, zone_histogram

QUANTILES = torch.tensor(
    [NormalDist().inv_cdf((number + 0.5) / 50_000) for number in range(50_000)], dtype=torch.float64
)
ENDS = [(-140, 40), (1, 12), (0, 24)]  # of centre, spread and loss scale


@pytest.fixture
def panel():
    return RangeExplorer()


def shown(panel):
    """The percentages as a reader sees them."""
    text = re.sub(r"<svg.*?</svg>", "", panel.html, flags=re.S)
    return dict(re.findall(r"(lost|subnormal|normal|overflow) <b>([^<]*)</b>", text))


def test_percentages_are_of_numbers_that_torch_casts(panel):
    panel.centre.value, panel.spread.value = -22, 3.0
    sizes = torch.exp2(QUANTILES * 3.0 - 22.0)
    cast = sizes.half()
    lost = (cast == 0).double().mean().item()
    subnormal = (
        ((cast > 0) & (cast < torch.finfo(torch.float16).smallest_normal)).double().mean().item()
    )
    assert panel.histogram.share("lost") == pytest.approx(lost)
    assert panel.histogram.share("subnormal") == pytest.approx(subnormal)
    assert shown(panel) == {
        "lost": percent(lost),
        "subnormal": percent(subnormal),
        "normal": percent(panel.histogram.share("normal")),
        "overflow": "0.0 %",
    }


def test_each_control_changes_what_is_shown(panel):
    seen = [shown(panel)]
    for control, value in (
        (panel.centre, -30),
        (panel.spread, 9.0),
        (panel.loss_scale, 16),
        (panel.format, BF16),
    ):
        control.value = value
        seen.append(shown(panel))
    assert all(seen[n] != seen[n + 1] for n in range(4))
    assert seen[-1]["normal"] == "100.0 %"


def test_a_loss_scale_lifts_what_is_lost(panel):
    panel.centre.value = -24
    before = panel.histogram.share("lost")
    panel.loss_scale.value = 12
    assert before > 0.3 and panel.histogram.share("lost") < 0.001


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
def test_every_format_is_counted_as_by_rounding_at_every_end_of_the_sliders_and_between(panel, fmt):
    panel.format.value = fmt
    edge = fmt.min_exponent - fmt.significand_bits - 1
    settings = set(itertools.product(*ENDS)) | {
        (centre, spread, scale)
        for centre in (edge, fmt.min_exponent, fmt.max_exponent + 1, -20)
        for spread, scale in ((1, 0), (3, 2), (5, 17), (8, 7))
        if centre in panel.centre.options
    }
    for centre, spread, scale in settings:
        panel.centre.value, panel.spread.value, panel.loss_scale.value = centre, spread, scale
        numbers = torch.exp2(QUANTILES * spread + centre)
        assert panel.histogram == zone_histogram(numbers, fmt, 2.0**scale), (centre, spread, scale)
        assert panel.html.startswith("<div role") and "nan" not in panel.html.lower()
        assert ": 0 " not in panel.html  # no bar for a zone with nothing in it


@pytest.mark.parametrize("fmt", [FP16, BF16, FP8_E4M3], ids=lambda fmt: fmt.name)
def test_shares_are_near_those_of_numbers_drawn_at_random(panel, fmt):
    drawn = torch.randn(50_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    panel.format.value = fmt
    for centre in (-30, -20, -8, 12):
        panel.centre.value = centre
        rounded = zone_histogram(torch.exp2(drawn * 4 + centre), fmt)
        for zone in ZONES:  # within four standard errors of a share of a half
            assert panel.histogram.share(zone) == pytest.approx(rounded.share(zone), abs=0.009)


def test_the_sliders_end_where_everything_is_lost_or_overflows(panel):
    panel.centre.value = panel.centre.options[0]
    assert shown(panel)["lost"] == "100.0 %"
    panel.format.value = FP4_E2M1
    panel.centre.value = panel.centre.options[-1]
    assert shown(panel)["overflow"] == "100.0 %"
    with pytest.raises(ValueError, match="no option of 'centre, 2 to the'"):
        panel.centre.value = 41


def test_zones_are_told_apart_without_colour(panel):
    panel.centre.value, panel.spread.value = -14, 12.0
    for zone in ZONES:
        assert f">{zone}</text>" in panel.html
    assert (
        len(set(re.findall(r'id="(amp-[^"]+)"', panel.html))) == 3
    )  # three hatches, and the normal zone plain


def test_no_share_is_rounded_to_none_or_all():
    assert [percent(share) for share in (0.0, 1e-6, 0.0123, 0.99999, 1.0)] == [
        "0.0 %",
        "< 0.1 %",
        "1.2 %",
        "> 99.9 %",
        "100.0 %",
    ]


def test_controls_have_names_and_explanations(panel):
    for control in (panel.format, panel.centre, panel.spread, panel.loss_scale):
        assert control.label and control.tip


def test_the_histogram_says_where_its_numbers_are():
    panel = RangeExplorer()
    panel.centre.value, panel.spread.value = -20, 1
    said = panel.html
    assert (
        "histogram over exponents from 2^-2" in said
        and "most from 2^-2" in said
        and ": lost " in said
    )
    panel.centre.value = 3
    assert said.partition("aria-label")[2] != panel.html.partition("aria-label")[2]
    assert "most from 2^2 to 2^3" in panel.html or "most from 2^3 to 2^4" in panel.html
