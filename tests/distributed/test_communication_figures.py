"""Figures draw what they are given: checked on the artists, not on pixels."""

import math

import pytest
import torch
from matplotlib.colors import to_hex

from amp_course.distributed.communication import RingModel, halve_bytes
from amp_course.distributed.communication.accuracy import ReductionError
from amp_course.distributed.communication.counting import CollectiveCall
from amp_course.distributed.communication.figures import (
    reduction_figure,
    ring_figure,
    scale_window_figure,
    state_figure,
    traffic_figure,
)
from amp_course.kit.colours import FAINT, FORMAT_COLOURS
from amp_course.kit.style import png


def call(kind, dtype, size, phase):
    # two ranks: a ring sends half of an all-gather
    return CollectiveCall(kind, dtype, size, size, phase, 2)


CALLS = {
    "one": (
        call("broadcast", "float32", 9000, "construction"),
        call("all_gather", "bfloat16", 2000, "forward"),
        call("reduce_scatter", "float32", 4000, "backward"),
        call("reduce_scatter", "float32", 4000, "backward"),
        call("all_gather", "int32", 1000, "other"),
    ),
    "two": (call("all_reduce", "float16", 6000, "backward"),),
}


def row(
    ranks=2,
    scale=1.0,
    lost=0.0,
    overflowed=0.0,
    error=1e-3,
    dtype=torch.float16,
    order="ring",
    wide=None,
):
    return ReductionError(ranks, dtype, order, wide or dtype, scale, lost, overflowed, error)


def test_bars_are_the_bytes_that_a_ring_sends_by_dtype_and_phase():
    figure = traffic_figure(CALLS)
    (axis,) = figure.axes
    bars = [
        (
            *map(pytest.approx, (bar.get_y() + 0.35, bar.get_x(), bar.get_width())),
            bar.get_hatch() or "",
            to_hex(bar.get_facecolor()).upper(),
        )
        for bar in axis.patches
    ]
    fp32, bf16, fp16 = (FORMAT_COLOURS[fmt].upper() for fmt in ("fp32", "bf16", "fp16"))
    assert bars == [
        (0, 0, 1, "", bf16),
        (0, 1, 4, "//", fp32),
        (0, 5, 0.5, "..", FAINT.upper()),
        (1, 0, 6, "//", fp16),
    ]
    assert [text.get_text() for text in axis.texts if "kB" in text.get_text()] == ["6 kB", "6 kB"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "fp32, backward",
        "bf16, forward",
        "fp16, backward",
        "other dtypes, clipping and other",
    ]
    assert "one 6 kB; two 6 kB" in figure.alt and png(figure)


def test_errors_stop_where_something_overflows():
    figure = reduction_figure(
        {"a": (row(2), row(4, lost=0.25), row(8, overflowed=0.5)), "b": (row(2), row(4), row(8))}
    )
    error, lost, overflowed = figure.axes
    values = list(error.lines[0].get_ydata())
    assert values[:2] == [0.1, 0.1] and math.isnan(values[2])
    assert list(lost.lines[0].get_ydata()) == [0, 25, 0]
    assert list(overflowed.lines[0].get_ydata()) == [0, 0, 50]
    assert list(error.lines[1].get_xdata()) == [2, 4, 8]
    assert "At 8 ranks, a: relative error 0.001, lost 0.0 %, overflowed 50.0 %" in figure.alt


def test_ring_and_tree_differ_by_line_and_formats_by_colour_and_errors_are_written_at_the_end():
    ways = {
        "ring": (row(4), row(8, error=0.148, dtype=torch.bfloat16)),
        "tree": (row(4), row(8, error=0.0098, dtype=torch.bfloat16, order="tree")),
        "fp16": (row(4), row(8, error=0.0004, wide=torch.float32)),
        "inf": (row(4), row(8, overflowed=0.5)),
    }
    error = reduction_figure(ways).axes[0]
    bf16, fp16 = FORMAT_COLOURS["bf16"], FORMAT_COLOURS["fp16"]
    styles = [(line.get_color(), line.get_linestyle()) for line in error.lines]
    assert styles == [(bf16, "-"), (bf16, "--"), (fp16, ":"), (fp16, "-")]
    assert [text.get_text() for text in error.texts][:3] == ["14.8 %", "0.98 %", "0.04 %"]


def test_a_window_of_scales_is_described():
    ways = {
        "after": tuple(
            row(64, 2.0**e, lost=0.5 * (e < -2), overflowed=0.5 * (e > 2)) for e in range(-4, 5, 2)
        ),
        "none": (row(64, 1.0, lost=0.1, overflowed=0.1),),
    }
    figure = scale_window_figure(ways)
    words = "after: nothing is lost or overflows from 2^-2 to 2^2; none: no scale is free of both"
    assert words in figure.alt
    errors, lost, overflowed = (list(axis.lines[0].get_ydata()) for axis in figure.axes)
    assert errors[:-1] == pytest.approx([0.1] * 4)
    assert math.isnan(errors[-1]), "drawn where nothing overflows"
    assert (lost, overflowed) == ([50, 0, 0, 0, 0], [0, 0, 0, 0, 50])


def test_ring_times_have_a_plot_for_each_overlap():
    rows = halve_bytes(RingModel(0.0, 1e9), 10**9, 4.0, ranks=[2, 4], overlaps=[0.5, 0])
    figure = ring_figure(rows, "a model")
    first, second = figure.axes
    assert [list(line.get_ydata()) for line in first.lines] == [[8, 10], [6, 7]]
    assert [list(line.get_ydata()) for line in second.lines] == [[6, 8], [4, 5]]
    assert first.get_title(loc="left") == "No overlap"
    assert second.get_title(loc="left") == "50 % of the computation can overlap"
    assert {"1.33× as fast", "1.43× as fast"} <= {text.get_text() for text in first.texts}


def test_fsdp2_keeps_a_share_of_what_ddp_keeps():
    figure = state_figure(7_000_000_000, (8, 64))
    widths = [bar.get_width() for bar in figure.axes[0].patches]
    assert widths == pytest.approx([28, 28, 56, 3.5, 3.5, 7, 0.4375, 0.4375, 0.875])
    assert "DDP, any number of ranks 112 GB; FSDP2, 8 ranks 14 GB" in figure.alt
