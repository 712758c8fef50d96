"""What `BlockExplorer` draws: bars to scale, sentences,
and nothing that a name could smuggle in.
"""

import math
import re
from dataclasses import replace

import pytest

from amp_course.bits import FP4_E2M1, FP8_E4M3
from amp_course.frontiers import MXFP4, NVFP4
from amp_course.frontiers.block_errors import row_errors, spread, weight_row, with_outlier
from amp_course.frontiers.panel_html import FATES, block_view, name_text, percent_text, short_name

PLACE = 44
UNIT = spread(weight_row(), PLACE)
ROW = row_errors(with_outlier(weight_row(), PLACE, 20.0), MXFP4)
WHOLE = row_errors(ROW.values, MXFP4.with_size(64))


def view(row=ROW, other=None):
    return block_view(row, WHOLE, other, PLACE, UNIT)


def boxes(row=ROW):
    """The boxes that have a tip: (x, y, width, height, fill, tip)."""
    found = re.findall(
        r'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)" '
        r'fill="([^"]+)"><title>(.*?)</title>',
        view(row),
    )
    return [(*map(float, numbers[:4]), *numbers[4:]) for numbers in found]


def test_bars_of_numbers_are_to_scale_and_the_outlier_stays_inside():
    bars = [one for one in boxes() if one[4] == "#999999"]
    assert len(bars) == 64
    unit = bars[0][3] / abs(ROW.values[0] / UNIT)
    for bar, value in zip(bars, ROW.values, strict=True):
        assert bar[3] == pytest.approx(min(abs(value / UNIT), 4.0) * unit, abs=0.11)
    ground = bars[0][1]  # number 0 is negative: its bar hangs from the ground
    assert ROW.values[0] < 0 and bars[PLACE][1] + bars[PLACE][3] == pytest.approx(ground, abs=0.11)
    assert f"outlier: 20 σ → {ROW.rounded[PLACE] / UNIT:.3g} σ" in view()
    lost = ROW.rounded[32:].count(0)
    assert f"in its block, places 32 to 63, {lost} of 31 neighbours became 0" in view()


def test_bars_of_errors_are_logarithmic_and_in_the_colour_of_their_fate():
    bars = [one for one in boxes() if one[4] != "#999999"]
    assert len(bars) == 64
    full = max(bar[3] for bar in bars)
    for place, (bar, error) in enumerate(zip(bars, ROW.errors, strict=True)):
        assert bar[3] == pytest.approx(full * (1 + math.log10(max(error, 1e-3)) / 3), abs=0.11)
        became = "became 0" if ROW.rounded[place] == 0 else "clipped" if place == PLACE else "kept"
        assert bar[5].endswith(f", {became}")
        colour, hatch = FATES[became]
        assert bar[4].startswith(f"url(#amp-{colour.lstrip('#')}" if hatch else colour)


def test_the_outliers_block_is_shaded_and_each_block_has_an_edge():
    row = row_errors(ROW.values, MXFP4.with_size(16))
    shaded = re.search(
        r'<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)" height="[\d.]+" fill="var\(--jp-layout',
        view(row),
    )
    left, wide = 58, (650 - 58) / 64
    assert float(shaded[1]) == pytest.approx(left + 32 * wide, abs=0.1)
    assert float(shaded[2]) == pytest.approx(16 * wide, abs=0.1)
    ends = re.findall(r'<line x1="([\d.]+)" y1="[\d.]+" x2="([\d.]+)"', view(row))
    upright = {float(a) for a, b in ends if a == b}
    wanted = [left + edge * wide for edge in range(0, 65, 16)]
    assert sorted(upright) == pytest.approx(wanted, abs=0.1)


def test_names():
    for fmt, name in (
        (MXFP4.rounding_scale("up"), "MXFP4: E2M1, blocks of 32"),
        (NVFP4, "NVFP4: E2M1, blocks of 16"),
        (NVFP4.with_size(32), "E2M1, blocks of 32"),
        (MXFP4.with_size(64), "E2M1, one scale for all 64"),
    ):
        assert name_text(row_errors(ROW.values, fmt)) == name
    assert short_name(FP8_E4M3) == "E4M3" and short_name(replace(FP8_E4M3, name="own")) == "own"
    assert [percent_text(one) for one in (0.0264, 0.9981, 1.0)] == ["2.64 %", "99.8 %", "100 %"]


def test_an_error_above_all_of_a_number_stays_inside_the_picture():
    """Rounded at random, a tiny number may become many times as large."""
    row = replace(ROW, rounded=[*ROW.rounded[:3], 50 * ROW.values[3], *ROW.rounded[4:]])
    tall = [bar[3] for bar in boxes(row) if bar[4] != "#999999"]
    assert row.errors[3] > 10 and row.zeroed[33]
    assert tall[3] == tall[33] == max(tall)


def test_names_are_escaped():
    own = replace(FP4_E2M1, name="fp4 <b>")
    row = row_errors(ROW.values, replace(MXFP4, element=own))
    other = row_errors(ROW.values, replace(MXFP4, element=replace(FP8_E4M3, name="fp8 <i>")))
    html = view(row, other)
    assert "&lt;b&gt;, blocks of 32" in html and "With &lt;i&gt; elements" in html
    assert "<i>" not in html
