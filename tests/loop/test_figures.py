"""Figures draw their data: checked on the artists, not on pixels."""

import pytest
from matplotlib.figure import Figure

from amp_course.kit.memory import StepMemory
from amp_course.loop import figures as f


def test_fooled_bars_reach_from_one_to_the_ratio():
    axis = f.fooled_figure({"no sync": (0.02, 10.0), "loading": (40.0, 10.0)}).axes[0]
    ends = sorted(bar.get_x() + bar.get_width() for bar in axis.patches)
    assert ends == pytest.approx([0.002, 4.0])
    assert "0.02 ms instead of 10 ms" in " ".join(text.get_text() for text in axis.texts)


def test_memory_bars_add_up_to_the_total():
    memory = StepMemory(2**20, 0, 2**20, 2**21, 2**22, 2**19, 2**23, None)
    axis = f.memory_figure({"fp32": memory}).axes[0]
    assert sum(bar.get_width() for bar in axis.patches) == pytest.approx(memory.total / 2**20)


def test_scale_marks_the_skipped_steps():
    axis = f.scale_figure([8.0, 4.0, 4.0], [0]).axes[0]
    assert list(axis.lines[1].get_xdata()) == [0] and list(axis.lines[1].get_ydata()) == [8.0]
    assert isinstance(f.scale_figure([8.0, 8.0], []), Figure)
