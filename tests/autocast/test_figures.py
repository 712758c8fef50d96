"""Figures draw their data: checked on the artists, not on pixels."""

from amp_course.autocast import figures as f


def test_a_line_for_each_training():
    axis = f.frozen_figure({"right": [3.0, 2.0, 1.0], "frozen": [3.0, 3.0, 3.0]}).axes[0]
    assert [list(line.get_ydata()) for line in axis.lines] == [[3, 2, 1], [3, 3, 3]]
    assert axis.lines[0].get_linestyle() != axis.lines[1].get_linestyle()
    assert [text.get_text() for text in axis.get_legend().get_texts()] == ["right", "frozen"]
