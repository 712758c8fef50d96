from __future__ import annotations

from amp_course.patterns.figures import clipping_figure, resume_figure


def test_clipping_draws_a_line_for_each_loop_and_the_limit() -> None:
    figure = clipping_figure(
        [1.0, 16.0], {"right": [1.0, 1.0], "wrong": [1.0, 1 / 16]}, max_norm=1.0
    )
    (axis,) = figure.axes
    assert [text.get_text() for text in axis.get_legend().get_texts()] == ["right", "wrong"]
    assert list(axis.lines[1].get_ydata()) == [1.0, 1 / 16]
    # told apart without colour
    assert {line.get_linestyle() for line in axis.lines[:2]} == {"-", "--"}
    assert "from 1 to 16" in figure.alt
    assert "wrong: 1 at the lowest, 0.062 at the highest" in figure.alt


def test_resume_draws_losses_above_scales_and_marks_the_stop() -> None:
    figure = resume_figure(
        {"with": [3.0, 2.0, 1.0], "without": [3.0, 2.0, 2.0]},
        {"with": [4.0] * 3, "without": [4.0, 4.0, 8.0]},
        2,
    )
    above, below = figure.axes
    assert [list(line.get_ydata()) for line in above.lines[:2]] == [[3, 2, 1], [3, 2, 2]]
    assert [list(line.get_ydata()) for line in below.lines[:2]] == [[4, 4, 4], [4, 4, 8]]
    assert above.lines[2].get_xdata()[0] == 1.5
    assert "without: loss 2.00 at the end, loss scale 8 right after the stop" in figure.alt
