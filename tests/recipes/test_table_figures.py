"""The figures of the table and of the drift draw their data."""

import torch

from amp_course.kit.models import DigitsResNet
from amp_course.recipes import ALL, O2, O3, RecipeTable, measure_all
from amp_course.recipes.figures import distance_figure, recipe_table_figure


def test_table_figure_writes_every_sum_and_every_format():
    table = measure_all(ALL, DigitsResNet(2), torch.rand(4, 1, 8, 8), torch.arange(4))
    figure = recipe_table_figure(table)
    assert all(
        f"{row.label} {row.bytes_per_parameter:.1f} and " in figure.alt for row in table.rows
    )
    kept, activations = figure.axes
    words = [text.get_text().strip() for text in kept.texts]
    for row in table.rows:
        assert f"{row.bytes_per_parameter:.1f}" in words
    # weights and gradients of O2, O3 and the half model, the state of the last two
    assert words.count("fp16") == 8
    ends = {round(bar.get_x() + bar.get_width(), 6) for bar in kept.patches}
    assert {round(row.bytes_per_parameter, 6) for row in table.rows} <= ends
    widths = [bar.get_width() for bar in activations.patches]
    assert widths == [row.activation_bytes for row in table.rows[::-1]]
    assert len(recipe_table_figure(RecipeTable(table.rows[:1])).axes[1].patches) == 1


def test_distances_are_drawn_with_the_limit():
    figure = distance_figure({O2(): [2**-12, 2**-11], O3(): [2**-9, 2**-8]}, 2**-10)
    assert "O2 4.9e-04; O3 3.9e-03" in figure.alt
    (axis,) = figure.axes
    lines = {line.get_label(): list(line.get_ydata()) for line in axis.lines}
    assert lines["O2"] == [2**-12, 2**-11] and lines["O3"] == [2**-9, 2**-8]
    assert [2**-10, 2**-10] in lines.values()
    assert axis.get_yscale() == "log" and axis.texts[0].get_text() == "2⁻¹⁰"
    assert len({line.get_linestyle() for line in axis.lines}) > 1
