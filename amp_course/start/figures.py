"""The figure of the start page: what a minute of AMP buys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from amp_course.kit.colours import COLOURS, HATCHES, INK
from amp_course.kit.measure import TOO_BUSY, seconds_text, too_busy
from amp_course.kit.memory import bytes_text
from amp_course.kit.style import new_figure, title
from amp_course.start.taste import Side


def taste_figure(sides: Sequence[Side]) -> Figure:
    """Draw a bar of time and one of memory for each side, and write the accuracies."""
    numbers = "; ".join(
        f"{side.recipe.label}: {seconds_text(side.seconds_per_step)} a step, a peak of "
        f"{bytes_text(side.peak_bytes)}, {side.accuracy:.1%} right"
        for side in sides
    )
    alt = f"Time per step and peak memory of the same training. {numbers}."
    figure, axes = new_figure(7.2, 2.4, columns=2, alt=alt)
    _bars(axes[0], sides, [side.seconds_per_step for side in sides], seconds_text)
    _bars(axes[1], sides, [side.peak_bytes for side in sides], bytes_text)
    busy = too_busy(*(side.waited for side in sides))
    name, note = "Time per step", "median; shorter is better"
    title(axes[0], TOO_BUSY if busy else name, name if busy else note)
    title(axes[1], "Peak memory of a step", "shorter is better")
    words = "     ".join(f"{side.recipe.label}: {side.accuracy:.1%}" for side in sides)
    figure.supxlabel(f"Accuracy on held-out digits:  {words}", fontsize=9, color=INK)
    return figure


def _bars(axis: Any, sides: Sequence[Side], values: Sequence[float], text: Any) -> None:
    for row, (side, value) in enumerate(list(zip(sides, values, strict=True))[::-1]):
        name = side.recipe.name
        axis.barh(
            row, value, color=COLOURS[name], hatch=HATCHES[name], edgecolor="white", height=0.6
        )
        axis.text(value, row, f" {text(value)}", va="center", fontsize=8)
    axis.set_yticks(range(len(sides)), [side.recipe.label for side in sides[::-1]], fontsize=9)
    axis.set_xticks([])
    axis.spines["bottom"].set_visible(False)
    axis.margins(x=0.25)
    axis.set_xlim(left=0)
