"""Figures draw what they are given: checked on the artists and in the alt texts, not on pixels."""

import math
from dataclasses import replace

import pytest
import torch

from amp_course.bits import FP4_E2M1
from amp_course.frontiers import MXFP4, MXFP8_E4M3, NVFP4
from amp_course.frontiers.block_errors import (
    block_line,
    format_errors,
    row_errors,
    spread,
    weight_row,
    with_outlier,
)
from amp_course.frontiers.block_figures import (
    FATES,
    LEAST_ERROR,
    block_line_figure,
    fate,
    format_error_figure,
    row_figure,
)
from amp_course.kit.style import image_html, png

PLACE = 37
ROW = row_errors(with_outlier(weight_row(), PLACE, 20.0), MXFP4)
UNIT = spread(weight_row(), PLACE)
LINES = [block_line(weight_row(32), fmt) for fmt in (MXFP4, NVFP4, MXFP8_E4M3)]
GENERATOR = torch.Generator().manual_seed(3)
TENSORS = {
    "weights": weight_row(256).reshape(4, 64),
    "gradients": torch.randn(4, 64, generator=GENERATOR) ** 9,
}
ERRORS = format_errors(TENSORS)


def test_a_bar_for_each_number_and_its_error_in_the_colour_of_its_fate():
    above, below = row_figure(ROW, PLACE, UNIT).axes
    assert [bar.get_height() * UNIT for bar in above.patches[:64]] == pytest.approx(
        ROW.values.tolist()
    )
    dashes = above.collections[0].get_offsets()
    assert [y * UNIT for _, y in dashes] == pytest.approx(ROW.rounded.tolist())
    bars = [bar for bar in below.patches if bar.get_y() == LEAST_ERROR]
    assert len(bars) == 64
    for bar in bars:
        place = round(bar.get_x() + bar.get_width() / 2)
        assert bar.get_y() + bar.get_height() == pytest.approx(
            max(float(ROW.errors[place]), LEAST_ERROR)
        )
        assert (bar.get_hatch() or "") == FATES[fate(ROW, place)][1]
    assert [text.get_text().strip() for text in above.texts if "→" in text.get_text()] == [
        "20 → 16.8"
    ]


def test_fates_are_told_apart_without_colour():
    assert len({hatch for _, hatch in FATES.values()}) == len(FATES)
    assert [fate(ROW, place) for place in (PLACE, 33, 0)] == ["clipped", "became 0", "kept"]


def test_a_line_where_each_block_begins_and_the_outliers_block_is_shaded():
    row = row_errors(ROW.values, MXFP4.with_size(16))
    for axis in row_figure(row, PLACE, UNIT).axes:
        assert [line.get_xdata()[0] for line in axis.lines] == [15.5, 31.5, 47.5]
        shaded = axis.patches[-1].get_extents().transformed(axis.transData.inverted())
        assert (round(shaded.x0, 3), round(shaded.x1, 3)) == (31.5, 47.5)


def test_the_alt_text_of_a_row_says_what_was_counted():
    alt = row_figure(ROW, PLACE, UNIT).alt
    assert (
        "64 numbers in MXFP4, blocks of 32" in alt and "20 standard deviations at place 37" in alt
    )
    assert f"Became 0: {int((ROW.rounded == 0).sum())}; clipped: 1;" in alt
    assert (
        f"without the outlier {ROW.error(PLACE):.2%}" in alt
        and "places 32 to 63" in alt
        and alt.endswith(".")
    )


def test_a_number_line_has_a_tick_for_each_number_and_a_stroke_for_each_value():
    figure = block_line_figure(LINES)
    assert len(figure.axes) == 3
    for axis, drawn in zip(figure.axes, LINES, strict=True):
        ticks = [segment[0][0] for segment in axis.collections[0].get_segments()]
        assert ticks == pytest.approx(drawn.grid.tolist())
        ends = [tuple(line.get_xdata()) for line in axis.lines]
        assert ends == [*zip(drawn.values.tolist(), drawn.rounded.tolist(), strict=True)]
        dashed = [line.get_xdata()[1] for line in axis.lines if line.get_linestyle() == "--"]
        assert dashed == [0.0] * int((drawn.rounded == 0).sum())
    texts = [axis.texts[0].get_text() for axis in figure.axes]
    assert texts[0] == "15 numbers, scale 2⁻⁷" and texts[1].startswith("15 numbers, scale 0.0077")
    assert texts[2].startswith("253 numbers")


def test_the_alt_text_of_number_lines_says_what_is_lost():
    lost = [int((drawn.rounded == 0).sum()) for drawn in LINES]
    alt = block_line_figure(LINES).alt
    assert lost[0] > lost[2] == 0
    assert f"MXFP4 has 15 numbers up to 0.0469; values that become 0: {lost[0]}" in alt
    assert "MXFP8 E4M3 has 253 numbers up to" in alt and "become 0: 0." in alt


def test_each_error_is_a_mark_in_its_row_and_its_share_of_zeros_below():
    figure = format_error_figure(ERRORS)
    errors, shares = figure.axes[:2], figure.axes[2:]
    names = [*dict.fromkeys(one.format for one in ERRORS)]
    for column, tensor in enumerate(TENSORS):
        of = [one for one in ERRORS if one.tensor == tensor]
        for axis, field in ((errors[column], "error"), (shares[column], "zeroed")):
            marks = [line for line in axis.lines if line.get_marker() not in ("", "None")]
            assert [line.get_xdata()[0] for line in marks] == pytest.approx(
                [100 * getattr(one, field) for one in of]
            )
            assert [round(line.get_ydata()[0]) for line in marks] == [
                names.index(one.format) for one in of
            ]
    assert [label.get_text() for label in errors[0].get_yticklabels()][4:] == [
        "MXFP4 · 4.25 bits", "NVFP4 · 4.5 bits", "fp8 E4M3 per tensor · 8.03 bits", "int8 per "
        "tensor · 8.03 bits",
    ]  # fmt: skip
    assert errors[0].get_title(loc="left") == "weights"
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["scale down", "scale to nearest", "scale up", "scale not a power of two"]


def test_roundings_are_told_apart_by_marks_that_do_not_cover_each_other():
    axis = format_error_figure(ERRORS).axes[0]
    marks = [line for line in axis.lines if line.get_marker() not in ("", "None")][:3]
    assert (
        len({line.get_marker() for line in marks}) == 3
        and len({line.get_ydata()[0] for line in marks}) == 3
    )


def test_the_alt_text_of_errors_names_the_best_rounding_of_each():
    alt = format_error_figure(ERRORS).alt
    best = min(
        (one for one in ERRORS if (one.tensor, one.format) == ("gradients", "MXFP4")),
        key=lambda one: one.error,
    )
    assert f"MXFP4 {best.error:.2%}, {best.zeroed:.1%} became 0" in alt.split("gradients: ")[1]
    assert alt.count("MXFP4 ") == 2 and alt.endswith(".")


def test_an_error_of_0_has_no_place_on_a_logarithmic_axis():
    figure = format_error_figure(format_errors({"ones": torch.ones(2, 32)}))
    marks = [line for line in figure.axes[0].lines if line.get_marker() not in ("", "None")]
    assert any(math.isnan(line.get_xdata()[0]) for line in marks)
    assert png(figure)
    assert png(format_error_figure(format_errors({"zeros": torch.zeros(2, 32)})))


EVIL = "<img src=x onerror=alert(1)>"


def test_a_name_is_text_and_never_markup():
    own = replace(MXFP4, name=EVIL, element=FP4_E2M1.renamed(EVIL))
    for figure in (
        row_figure(row_errors(ROW.values, own), PLACE, UNIT),
        block_line_figure([block_line(weight_row(32), own)]),
        format_error_figure(format_errors({EVIL: weight_row()}, [own])),
    ):
        html = image_html(figure)
        assert html.count("<") == 1 and "&lt;img src=x" in html
