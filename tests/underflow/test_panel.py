"""The panel without a browser: its controls drive it, its numbers are those of real rounding,
and it never throws.
"""

import base64
import re

import pytest
import torch

from amp_course.bits.formats import BF16, FORMATS, FP4_E2M1, FP16
from amp_course.underflow.panel import RangeExplorer
from amp_course.underflow.panel_html import percent
from amp_course.underflow.zones import ZONES


@pytest.fixture
def panel():
    return RangeExplorer()


def shown(panel):
    """The percentages as a reader sees them."""
    text = re.sub(r"<svg.*?</svg>", "", panel.view.value, flags=re.S)
    return dict(re.findall(r"(lost|subnormal|normal|overflow) <b>([^<]*)</b>", text))


def test_percentages_are_of_numbers_that_torch_casts(panel):
    panel.centre.value, panel.spread.value = -22, 3.0
    sizes = torch.exp2(panel._normal * 3.0 - 22.0)
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
def test_every_format_and_every_end_of_the_sliders_can_be_seen(panel, fmt):
    panel.format.value = fmt
    for centre in (panel.centre.min, panel.centre.max):
        for spread in (panel.spread.min, panel.spread.max):
            for scale in (panel.loss_scale.min, panel.loss_scale.max):
                panel.centre.value, panel.spread.value, panel.loss_scale.value = (
                    centre,
                    spread,
                    scale,
                )
                assert sum(panel.histogram.share(zone) for zone in ZONES) == pytest.approx(1)
                assert (
                    panel.view.value.startswith("<div role")
                    and "nan" not in panel.view.value.lower()
                )
                assert ": 0 " not in panel.view.value  # no bar for a zone with nothing in it


def test_values_out_of_range_stay_at_the_ends(panel):
    panel.centre.value = -10_000
    assert panel.centre.value == panel.centre.min and shown(panel)["lost"] == "100.0 %"
    panel.format.value = FP4_E2M1
    panel.centre.value = 10_000
    assert shown(panel)["overflow"] == "100.0 %"


def test_zones_are_told_apart_without_colour(panel):
    panel.centre.value, panel.spread.value = -14, 12.0
    for zone in ZONES:
        assert f">{zone}</text>" in panel.view.value
    assert (
        len(set(re.findall(r'id="(amp-[^"]+)"', panel.view.value))) == 3
    )  # three hatches, and the normal zone plain


def test_no_share_is_rounded_to_none_or_all():
    assert [percent(share) for share in (0.0, 1e-6, 0.0123, 0.99999, 1.0)] == [
        "0.0 %",
        "< 0.1 %",
        "1.2 %",
        "> 99.9 %",
        "100.0 %",
    ]


def test_a_page_without_a_kernel_gets_a_picture(panel):
    bundle, _ = panel._repr_mimebundle_()
    assert base64.b64decode(bundle["image/png"]).startswith(b"\x89PNG")
    assert bundle["text/plain"] == "RangeExplorer()"
    panel.centre.value = panel.centre.min
    assert panel.still() and panel.format.value is FP16


def test_controls_have_names_and_explanations(panel):
    for control in (panel.format, panel.centre, panel.spread, panel.loss_scale):
        assert control.description and control.tooltip


def test_the_histogram_says_where_its_numbers_are():
    panel = RangeExplorer()
    panel.centre.value, panel.spread.value = -20, 1
    said = panel.view.value
    assert (
        "histogram over exponents from 2^-2" in said
        and "most from 2^-2" in said
        and ": lost " in said
    )
    panel.centre.value = 3
    assert said.partition("aria-label")[2] != panel.view.value.partition("aria-label")[2]
    assert "most from 2^2 to 2^3" in panel.view.value or "most from 2^3 to 2^4" in panel.view.value
