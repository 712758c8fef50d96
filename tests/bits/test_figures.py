"""Figures draw their data: checked on the artists, not on pixels."""

import math

import torch

from amp_course.bits import figures as draw
from amp_course.bits import formats as f
from amp_course.bits.survey import gaps, values_between, values_per_binade


def test_layouts_are_to_scale():
    axis = draw.layouts_figure([f.FP16, f.BF16]).axes[0]
    widths = [bar.get_width() for bar in axis.patches]
    assert widths == [1, 8, 7, 1, 5, 10]  # from below: bf16, then fp16
    assert [label.get_text() for label in axis.get_yticklabels()] == ["bf16", "fp16"]


def test_number_lines_hold_every_value_once():
    values = values_between(0, 7.5, f.FP6_E2M3)
    axis = draw.number_line_figure([("all", {f.FP6_E2M3: values})]).axes[0]
    drawn = sorted(segment[0][0] for ticks in axis.collections for segment in ticks.get_segments())
    assert drawn == values
    short = axis.collections[1].get_segments()
    assert len(short) == 8 and short[0][1][1] - short[0][0][1] < 0.5  # zero and the subnormals


def test_binades_are_drawn_at_their_exponents():
    counts = values_per_binade(f.FP8_E4M3)
    (line,) = draw.binades_figure({f.FP8_E4M3: counts}).axes[0].lines
    assert list(line.get_xdata())[:-1] == list(counts) and list(line.get_ydata())[:-1] == list(
        counts.values()
    )


def test_ulp_lines_end_where_the_format_does():
    exponents = range(10, 18)
    lines = draw.ulp_figure({f.FP16: gaps(f.FP16, exponents)}, exponents).axes[0].lines
    assert [math.isnan(y) for y in lines[0].get_ydata()] == [False] * 6 + [True] * 2


def test_integers_end_where_a_line_crosses_the_mark():
    """The claim, from torch itself: 2^(M + 1) is exact and the next integer is not;
    there the drawn line is at the mark.
    """
    exponents = range(0, 18)
    formats = [f.FP16, f.BF16, f.FP8_E4M3]
    axis = draw.ulp_figure({fmt: gaps(fmt, exponents) for fmt in formats}, exponents).axes[0]
    *lines, mark = axis.lines
    for fmt, line in zip(formats, lines, strict=True):
        integers = torch.arange(fmt.max if fmt.max < 4096 else 4096.0)
        first_lost = integers[integers.to(fmt.dtype).float() != integers][0].item()
        drawn = dict(zip(line.get_xdata(), line.get_ydata(), strict=True))
        assert drawn[first_lost - 1] == mark.get_ydata()[0]
    assert "every integer is exact up to where a line gets here" in " ".join(
        text.get_text() for text in axis.texts
    )


def test_ranges_reach_from_the_smallest_to_the_largest():
    left = draw.range_figure([f.FP16]).axes[0]
    normal, subnormal = left.patches
    assert math.isclose(normal.get_x() + normal.get_width(), math.log10(f.FP16.max))
    assert math.isclose(subnormal.get_x(), math.log10(f.FP16.smallest_subnormal))
