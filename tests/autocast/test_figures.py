"""Figures draw what they are given: checked on the artists, not on pixels."""

import sys

import torch

from amp_course.autocast import figures as f
from amp_course.autocast import trace
from amp_course.kit.colours import FORMAT_COLOURS
from amp_course.kit.models import SimpleNet


def words(axis):
    return [text.get_text() for text in axis.texts]


def test_a_row_for_each_module_with_its_dtypes_and_bytes():
    rows = trace(SimpleNet(8), torch.randn(2, 8)).modules
    doors, sizes = f.trace_figure(rows).axes
    assert [word for word in words(doors) if "linear" in word] == ["linear1", "linear2", "linear3"]
    assert (
        words(doors).count("fp32") == 2 and words(doors).count("bf16") == 6
    )  # the model and linear1 take fp32
    assert [bar.get_width() for bar in sizes.patches] == [row.cast_bytes for row in rows]
    assert " 176 in 3" in words(sizes)
    frames = [patch for patch in doors.patches if patch.get_width() == f._WIDE]
    assert len(frames) == 8
    from matplotlib.colors import to_hex

    assert {to_hex(frame.get_edgecolor()).upper() for frame in frames} == {
        FORMAT_COLOURS["fp32"],
        FORMAT_COLOURS["bf16"],
    }


def test_no_rows_is_an_empty_picture():
    assert len(f.trace_figure(()).axes) == 2


def test_a_line_for_each_training():
    axis = f.frozen_figure({"right": [3.0, 2.0, 1.0], "frozen": [3.0, 3.0, 3.0]}).axes[0]
    assert [list(line.get_ydata()) for line in axis.lines] == [[3, 2, 1], [3, 3, 3]]
    assert axis.lines[0].get_linestyle() != axis.lines[1].get_linestyle()
    assert [text.get_text() for text in axis.get_legend().get_texts()] == ["right", "frozen"]


def test_no_figure_is_made_through_pyplot():
    f.frozen_figure({"one": [1.0]})
    if "matplotlib.pyplot" in sys.modules:
        assert not sys.modules["matplotlib.pyplot"].get_fignums()
