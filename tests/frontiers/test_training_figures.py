"""What the figures of the trainings show is what the runs say."""

from dataclasses import replace

import pytest
from matplotlib.text import Text

from amp_course.frontiers.experiments import CompressedVariant, Run, TrainingTable
from amp_course.frontiers.experiments.gradient_errors import GradientError
from amp_course.frontiers.training_figures import gradient_error_figure, loss_figure, score_figure

RUN = Run("resnet", "fp32", 32, 0.05, 0, tuple(float(n) for n in range(25)), 0.9, 0.01)


def test_a_curve_is_the_mean_of_ten_steps():
    other = replace(RUN, variant="MXFP4, scale up", losses=(3.0, 1.0))
    figure = loss_figure([RUN, other])
    first, second = figure.axes[0].lines
    assert first.get_xydata().tolist() == [[10, 4.5], [20, 14.5], [25, 22]]
    assert second.get_xydata().tolist() == [[2, 2.0]] and first.get_color() != second.get_color()
    words = "Training loss, step by step. At the end: fp32 14.50; MXFP4, scale up 2.00."
    assert figure.alt == words


def test_each_seed_has_its_dot_and_the_band_is_the_first_variants():
    runs = [
        RUN,
        replace(RUN, seed=1, score=0.92),
        replace(RUN, variant=CompressedVariant().name, score=0.8),
    ]
    figure = score_figure(TrainingTable(tuple(runs)))
    axis = figure.axes[0]
    dots = [[float(x) for x in line.get_xdata()] for line in axis.lines]
    assert dots == [pytest.approx(x) for x in ([90, 92], [91, 91], [80], [80, 80])]
    band = axis.patches[0].get_extents().transformed(axis.transData.inverted())
    assert (band.x0, band.x1) == pytest.approx((90, 92))
    names = [label.get_text() for label in axis.get_yticklabels()]
    assert names == ["fp32", "2-bit activations, groups of 256"]
    assert figure.alt == (
        "Right digits, mean over seeds: fp32 91; 2-bit activations, groups of 256 80. "
        "A band from 90 to 92 spans the seeds of fp32."
    )
    assert "band: the seeds of “fp32”" in " ".join(text.get_text() for text in figure.findobj(Text))
    assert "rate 0.5" in score_figure(TrainingTable((*runs, replace(RUN, rate=0.5)))).alt


def test_a_ring_is_one_draw_and_a_dot_the_mean():
    errors = [GradientError("MXFP4", 0.5, 0.2), GradientError("fp8", 0.1, 0.1)]
    figure = gradient_error_figure(errors)
    lines = [[float(x) for x in line.get_xdata()] for line in figure.axes[0].lines]
    assert lines == [[0.2, 0.5], [0.5], [0.2], [0.1, 0.1], [0.1], [0.1]]
    assert "MXFP4 0.500 and 0.200; fp8 0.100 and 0.100" in figure.alt
