"""Figures draw their data: checked on the artists, not on pixels."""

import torch

from amp_course.positions import figures as f
from amp_course.positions.sharing import Run


def words(axis):
    return " ".join(text.get_text() for text in axis.texts)


def test_distinct_lines_end_with_their_count_and_labels_do_not_touch():
    axis = f.distinct_figure(
        {"fp8 E4M3": [(16, 16), (64, 55)], "fp8 E5M2": [(16, 13), (64, 61)]}
    ).axes[0]
    assert [list(line.get_ydata()) for line in axis.lines] == [[13, 61], [16, 55]]
    assert "fp8 E4M3: 55" in words(axis)
    heights = [text.get_position()[1] for text in axis.texts[:2]]
    assert heights[0] >= 1.8 * heights[1]


def test_runs_are_boxes_as_wide_as_their_tokens():
    strip = [Run(254, 1, 254.0), Run(255, 3, 256.0)]
    axis = f.runs_figure({"bf16": strip}).axes[0]
    assert [(bar.get_x(), bar.get_width(), bool(bar.get_hatch())) for bar in axis.patches] == [
        (254, 1, False),
        (255, 3, True),
    ]
    assert [label.get_text() for label in axis.get_xticklabels()] == ["254", "256"]


def test_error_maps_name_their_worst():
    figure = f.angle_error_figure({"one": torch.full((4, 3), 0.25), "two": torch.zeros(4, 3)}, 64)
    assert figure.axes[0].get_title(loc="left") == "one: up to 0.25"
    assert figure.axes[0].images[0].get_array().shape == (3, 4)


def test_scores_show_their_spread():
    starts = torch.arange(3)
    flat, steep = torch.ones(3), torch.tensor([1.0, 0.5, 1.0])
    axes = f.offset_score_figure(
        starts, {"ids": steep, "b": flat, "c": flat, "right": flat}, 3
    ).axes
    assert axes[0].get_title(loc="left") == "ids: spread 0.5"
    assert (
        axes[0].lines[0].get_color() != axes[3].lines[0].get_color() == axes[3].lines[0].get_color()
    )


def test_alibi_draws_both_biases():
    axis = f.alibi_figure(
        torch.arange(3), ("cast", torch.zeros(3)), ("right", -torch.arange(3.0))
    ).axes[0]
    assert sorted(line.get_label() for line in axis.lines) == ["cast", "right"]


def test_cliff_draws_every_seed_and_the_guess():
    curves = {"float32": [[(0, 1.0), (32, 0.5)]] * 3, "bf16": [[(0, 1.0), (32, 0.1)]] * 3}
    axis = f.cliff_figure(curves, chance=0.0625, marks=(256,)).axes[0]
    assert (
        len(
            [
                line
                for line in axis.lines
                if len(line.get_xdata()) == 2 and line.get_marker() in "ox"
            ]
        )
        == 6
    )
    assert "256" in words(axis) and "a guess" in words(axis)
