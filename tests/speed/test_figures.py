"""The roofline figures: their alt texts tell what they show, and odd data
(no casts, a format never timed) is drawn too.
"""

from dataclasses import replace

import pytest
import torch

from amp_course.kit.style import png
from amp_course.speed.cards import find_card
from amp_course.speed.figures import opening_figure, rates_figure, roofline_figure
from amp_course.speed.machine import Machine, Rate
from amp_course.speed.opening import step_calls, three_layers
from amp_course.speed.roof_labels import (
    LEAST,
    MOST,
    STRIP_END,
    in_strip,
    rate_text,
    roof_label,
    same_height,
)
from amp_course.speed.roofline import Roofline, place

A100 = find_card("A100 SXM 40 GB").roofline()


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_a_roofline_tells_where_the_time_goes(dtype):
    ops = place(A100, step_calls(1024, dtype))
    figure = roofline_figure(A100, ops)
    share = sum(op.share for op in ops if op.kind == "matmul")
    assert f"matmul {100 * share:.0f} % (mm " in figure.alt
    assert (
        "bf16, fp16: 312 TFLOP/s, ridge at 201; tf32: 156 TFLOP/s, ridge at 100; fp32: 19.5 TFLOP/s"
        in figure.alt
    )
    assert png(figure)
    (axis,) = figure.axes
    marks = [collection.get_offsets()[0] for collection in axis.collections]
    assert len(marks) == len(ops)
    (left, right), (low, high) = axis.get_xlim(), axis.get_ylim()
    assert all(left < x < right and low < y < high for x, y in marks)


def test_an_empty_step_is_drawn_too():
    assert "by kind of op: none" in roofline_figure(A100, place(A100, [])).alt


def test_the_opening_tells_every_time_and_the_crossing():
    never = three_layers(A100, widths=(256, 512))
    alt = opening_figure(never).alt
    assert "width 256: fp32 90.0 µs, AMP 165 µs; width 512: fp32 " in alt
    assert "AMP is never faster." in alt
    figure = opening_figure(replace(never, crossing=744))
    assert "AMP is faster from width 744 on." in figure.alt and png(figure)


def test_bars_as_high_as_amp_is_slow_stay_in_the_picture():
    emulated = Roofline("a CPU with AVX2", {"fp32": 2e11, "bf16": 2e9}, 1e10, 1e-6)
    figure = opening_figure(three_layers(emulated, widths=(256,)))
    (axis,) = figure.axes
    assert max(bar.get_y() + bar.get_height() for bar in axis.patches) < axis.get_ylim()[1]


def test_rates_tell_what_was_not_timed_and_why():
    rates = (
        Rate("fp32", 64, 1e10),
        Rate("bf16", 64, 2e9),
        Rate("fp32", 128, 2e10),
        Rate("bf16", 128, None, "left out: slow"),
    )
    figure = rates_figure(
        Machine("cpu", (*rates, Rate("fp16", 64, None, "unsupported")), 1e10, 1e-6)
    )
    assert (
        "Best rates: fp32 20.0 GFLOP/s; bf16 2.00 GFLOP/s. bf16 left out: slow. fp16 unsupported."
        in figure.alt
    )
    (axis,) = figure.axes
    assert len(axis.get_lines()) == 2 and png(figure)


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (3.12e14, "312 TFLOP/s"),
        (2.25e15, "2.25 PFLOP/s"),
        (9.996e9, "10.0 GFLOP/s"),
        (9.998e11, "1.00 TFLOP/s"),
        (5e4, "50,000 FLOP/s"),
    ],
)
def test_rates_for_people(rate, text):
    assert rate_text(rate) == text


def test_roofs_that_nearly_coincide_share_a_label():
    assert same_height(A100) == [["bf16", "fp16"], ["tf32"], ["fp32"]]
    near = Roofline("near", {"fp32": 2e11, "bf16": 4.2e9, "fp16": 3.3e9}, 1e10, 1e-6)
    assert same_height(near) == [["fp32"], ["bf16", "fp16"]]
    assert roof_label(near, ["bf16", "fp16"]) == "bf16: 4.20 GFLOP/s, fp16: 3.30 GFLOP/s"


def test_the_strip_holds_its_marks_and_no_matmul():
    assert LEAST < in_strip(0) < in_strip(0.5) < in_strip(1) < STRIP_END < MOST
    assert STRIP_END < 2 / (3 * 4)  # the least that a matmul can do: 1 × 1 × 1 in fp32
    assert MOST > 65536 / 3  # and the most that the panel offers, in 16 bits
