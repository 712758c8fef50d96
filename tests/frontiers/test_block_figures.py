"""Figures draw what they are given: checked on the artists and in the alt texts, not on pixels."""

import math

import pytest
import torch

from amp_course.frontiers import MXFP4, MXFP8_E4M3, NVFP4
from amp_course.frontiers.block_errors import block_line, format_errors, weight_row
from amp_course.frontiers.block_figures import block_line_figure, format_error_figure
from amp_course.kit.style import png

LINES = [block_line(weight_row(32), fmt) for fmt in (MXFP4, NVFP4, MXFP8_E4M3)]
GENERATOR = torch.Generator().manual_seed(3)
TENSORS = {
    "weights": torch.randn(4, 64, generator=GENERATOR) * 0.02,
    "gradients": torch.randn(4, 64, generator=GENERATOR) ** 9,
}
ERRORS = format_errors(TENSORS)


def test_a_number_line_has_a_tick_for_each_number_and_a_stroke_for_each_value():
    figure = block_line_figure(LINES)
    assert len(figure.axes) == 3
    for axis, drawn in zip(figure.axes, LINES, strict=True):
        ticks = [segment[0][0] for segment in axis.collections[0].get_segments()]
        assert ticks == pytest.approx(drawn.grid)
        ends = [tuple(line.get_xdata()) for line in axis.lines]
        assert ends == [*zip(drawn.values, drawn.rounded, strict=True)]
        dashed = [line.get_xdata()[1] for line in axis.lines if line.get_linestyle() == "--"]
        assert dashed == [0.0] * drawn.rounded.count(0)
    texts = [axis.texts[0].get_text() for axis in figure.axes]
    assert texts[0] == "15 numbers, scale 2⁻⁷" and texts[1].startswith("15 numbers, scale 0.0077")
    assert texts[2].startswith("253 numbers")
    lost = [drawn.rounded.count(0) for drawn in LINES]
    assert f"MXFP4 has 15 numbers up to 0.0469; values that become 0: {lost[0]}" in figure.alt
    assert "MXFP8 E4M3 has 253 numbers up to" in figure.alt and lost[0] > lost[2] == 0


def test_each_error_is_a_mark_in_its_row_and_its_share_of_zeros_below():
    figure = format_error_figure(ERRORS)
    errors, shares = figure.axes[:2], figure.axes[2:]
    names = [*dict.fromkeys(one.format for one in ERRORS)]
    for column, tensor in enumerate(TENSORS):
        of = [one for one in ERRORS if one.tensor == tensor]
        for axis, field in ((errors[column], "error"), (shares[column], "zeroed")):
            marks = [line for line in axis.lines if line.get_marker() not in ("", "None")]
            wanted = [100 * getattr(one, field) for one in of]
            assert [line.get_xdata()[0] for line in marks] == pytest.approx(wanted)
            rows = [round(line.get_ydata()[0]) for line in marks]
            assert rows == [names.index(one.format) for one in of]
            # roundings have different marks, which do not cover each other
            assert len({line.get_marker() for line in marks[:3]}) == 3
            assert len({line.get_ydata()[0] for line in marks[:3]}) == 3
    assert [label.get_text() for label in errors[0].get_yticklabels()][4:] == [
        "MXFP4 · 4.25 bits",
        "NVFP4 · 4.5 bits",
        "fp8 E4M3 per tensor · 8.03 bits",
        "int8 per tensor · 8.03 bits",
    ]
    assert errors[0].get_title(loc="left") == "weights"
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["scale down", "scale to nearest", "scale up", "scale not a power of two"]


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
    assert png(format_error_figure(format_errors({"zeros": torch.zeros(2, 32)})))
