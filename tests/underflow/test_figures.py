"""Figures draw their data: checked on the artists, not on pixels."""

import math

import pytest
import torch

from amp_course.bits.formats import BF16, FP8_E4M3, FP16
from amp_course.kit.colours import ZONES as ZONE_STYLES
from amp_course.kit.style import png
from amp_course.underflow import figures as f
from amp_course.underflow.zones import zone_histogram

HISTOGRAM = zone_histogram(torch.tensor([1e-8, 1e-6, 1e-6, 1.0, 1.0, 1.0, 1.5, 1e5]), FP16)


def texts(figure):
    found = [text.get_text() for axis in figure.axes for text in axis.texts]
    return found + [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def test_gradient_rows_show_each_layer_with_its_lost_share():
    figure = f.gradient_figure(
        {"head": HISTOGRAM, "stem": HISTOGRAM}, FP16, (FP16, BF16, FP8_E4M3), "Title"
    )
    axis, strips = figure.axes
    assert [label.get_text() for label in axis.get_yticklabels()] == ["head", "stem"]
    assert texts(figure).count("12.5 %") == 2
    assert [label.get_text() for label in strips.get_yticklabels()] == ["fp8 E4M3", "bf16", "fp16"]
    cuts = [bar.get_x() for bar in strips.patches[-3:]]  # fp16's, where its zones begin
    assert cuts == pytest.approx([-25, -14, math.log2(65504)])
    png(figure)
    powers = [one for one in strips.get_xticklabels() if "$" in one.get_text()]
    assert powers and all(one.get_parse_math() for one in powers)
    rows = [bar for bar in axis.patches if bar.get_height() > 0]
    assert max(bar.get_height() for bar in rows) == pytest.approx(0.92)
    assert {bar.get_hatch() or "" for bar in rows} == {hatch for _, hatch in ZONE_STYLES.values()}


def test_running_sums_end_with_their_last_total():
    figure = f.running_sums_figure({"fp16": [1, 2, 2], "bf16": [1, 1, 1]}, exact=[1, 2, 3])
    assert {"2", "1"} <= set(texts(figure))
    assert [list(line.get_ydata()) for line in figure.axes[0].lines] == [
        [1, 2, 3],
        [1, 2, 2],
        [1, 1, 1],
    ]


def test_an_error_of_zero_has_no_point():
    figure = f.sum_errors_figure([8, 16], {"one by one": [0.1, 0.2], "exact": [0.0, 1e-8]})
    first, second = figure.axes[0].lines
    assert list(first.get_ydata()) == [0.1, 0.2]
    assert math.isnan(second.get_ydata()[0]) and second.get_ydata()[1] == 1e-8


def test_paths_differ_in_style_as_well_as_colour():
    figure = f.updates_figure({name: [1.0, 1.0] for name in "abcd"}, exact=[1.0, 1.1])
    styles = {(line.get_color(), line.get_linestyle()) for line in figure.axes[0].lines[1:]}
    assert len(styles) == 4
