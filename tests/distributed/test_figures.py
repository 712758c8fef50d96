"""The figure of ranks in step: it draws every group, every skip and every difference,
and its alt text tells them.
"""

import pytest

from amp_course.distributed.figures import rank_figure
from amp_course.distributed.panel_html import OVERFLOWED, SKIPPED
from amp_course.distributed.simulation import simulate
from amp_course.kit.style import png

pytestmark = pytest.mark.usefixtures("one_thread")


def test_each_group_of_ranks_has_a_line_of_scales_and_one_of_differences():
    run = simulate(4, "nothing", {3: [1], 6: [2]}, steps=10)
    figure = rank_figure(run)
    scales, rows, distances = figure.axes
    for axis, values in ((scales, run.scales), (distances, run.distances)):
        drawn = [tuple(line.get_ydata())[:-1] for line in axis.get_lines()]
        assert drawn == [values[ranks[0]] for ranks in run.groups()]
        low, high = axis.get_ylim()
        assert all(low < value < high for line in drawn for value in line)
    assert [text.get_text() for text in scales.get_legend().get_texts()] == [
        "ranks 0 and 3",
        "rank 1",
        "rank 2",
    ]
    assert [label.get_text() for label in rows.get_yticklabels()] == [
        "rank 0",
        "rank 1",
        "rank 2",
        "rank 3",
    ]
    assert distances.get_yticklabels()[0].get_text() == "equal"
    assert png(figure)


@pytest.mark.parametrize("agreement", ["nothing", "gradients all-reduced", "found_inf agreed"])
def test_every_skip_is_marked_by_whose_overflow_it_was(agreement):
    run = simulate(2, agreement, {1: [1], 4: [0, 1]}, steps=6)
    rows = rank_figure(run).axes[1]
    marks = {
        (round(bar.get_y() + 0.4), int(bar.get_x() + 0.2)): bar.get_hatch() for bar in rows.patches
    }
    alone = {(1, 1): OVERFLOWED * 2, (0, 4): OVERFLOWED * 2, (1, 4): OVERFLOWED * 2}
    assert marks == (alone if agreement == "nothing" else {**alone, (0, 1): SKIPPED * 2})


def test_the_alt_text_tells_the_runs_story():
    alt = rank_figure(simulate(2, "gradients all-reduced", {1: [1]}, steps=6)).alt
    assert alt.startswith(
        "2 ranks all-reduce their gradients: loss scale, skipped steps and distance from rank 0's "
        "weights"
    )
    assert "ranks 0 and 1: scale from 1,024 to 512, 1 skipped, distance from rank 0 0." in alt
    assert alt.endswith("both ranks skip step 2 together, and keep one scale and equal weights.")


@pytest.mark.parametrize("overflow_at", [{}, {0: [0]}])
def test_a_run_of_one_step_is_drawn_too(overflow_at):
    assert png(rank_figure(simulate(2, "nothing", overflow_at, steps=1)))
