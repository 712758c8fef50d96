"""The chapter's figures. They take what was measured, and measure nothing."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from amp_course.debugging.headroom import LEVELS, describe_levels, level_of
from amp_course.debugging.ranges import RangeWatch, Reading
from amp_course.kit.colours import FAINT, INK
from amp_course.kit.style import new_figure, title
from amp_course.kit.svg import is_pale
from amp_course.kit.tensors import short
from amp_course.watching.readings import Kind

_MOST_NAMES = 40
_SIGNS = {"x": "×", "o": "•", "_": "–", "|": "|"}  # marker of matplotlib → as the legend writes it


def headroom_figure(ranges: RangeWatch, *kinds: Kind, marked: int | None = None) -> Figure:
    """Draw maps of a run: a row for each module, a column for each measured pass, from lost (blue)
    to overflowing (red).

    kinds:  one map each; by default activations and their gradients
    marked: a forward pass to mark with a line, if it was measured

    Raises ValueError if none of the kinds was measured.
    """
    chosen: tuple[Kind, ...] = kinds or ("activation", "activation gradient")
    maps = {kind: ranges.of(kind) for kind in chosen}
    maps = {kind: found for kind, found in maps.items() if found}
    if not maps:
        raise ValueError(
            f"no {' and no '.join(chosen)} was measured: train the model while it is watched."
        )
    rows = max(map(len, maps.values()))
    numbers = {
        reading.number
        for found in maps.values()
        for readings in found.values()
        for reading in readings
    }
    at = f" Pass {marked:,} is marked." if marked in numbers else ""
    many = f"Maps of {len(maps)} kinds" if len(maps) > 1 else "A map of one kind"
    told = "; ".join(f"{kind}: {describe_levels(found)}" for kind, found in maps.items())
    figure, axes = new_figure(
        3.9 * len(maps) + 0.4,
        min(9.0, 1.5 + 0.2 * rows),
        columns=len(maps),
        squeeze=False,
        alt=f"{many} of tensor by module and forward pass, for {short(ranges.dtype)}. {told}.{at}",
    )
    for axis, (kind, found) in zip(axes[0], maps.items(), strict=True):
        _map(axis, found, marked)
        title(axis, f"{kind}s", f"by module and forward pass, for {short(ranges.dtype)}")
    shown = [
        Patch(facecolor=colour, edgecolor=FAINT, linewidth=0.5, label=_legend(name, mark))
        for name, colour, mark in LEVELS
    ]
    figure.legend(
        handles=shown,
        loc="outside lower center",
        ncols=3 if len(maps) > 1 else 2,
        fontsize=8,
        frameon=False,
    )
    return figure


def _legend(name: str, mark: str) -> str:
    return f"{name} ({_SIGNS[mark]})" if mark else name


def _map(axis: Any, found: dict[str, list[Reading]], marked: int | None) -> None:
    numbers = sorted({reading.number for readings in found.values() for reading in readings})
    place = {number: column for column, number in enumerate(numbers)}
    grid = np.full((len(found), len(numbers)), np.nan)
    for row, readings in enumerate(found.values()):
        for reading in readings:  # a module that ran more than once in a pass shows its hottest
            level = level_of(reading)
            old = grid[row, place[reading.number]]
            grid[row, place[reading.number]] = level if math.isnan(old) else max(old, level)
    axis.imshow(
        grid,
        cmap=ListedColormap([colour for _, colour, _ in LEVELS]),
        vmin=-0.5,
        vmax=len(LEVELS) - 0.5,
        aspect="auto",
        interpolation="nearest",
    )
    for level, (_, colour, mark) in enumerate(LEVELS):
        if mark:
            y, x = np.nonzero(grid == level)
            size = 9 if len(numbers) <= 60 else 3
            ink = INK if is_pale(colour) else "white"
            axis.scatter(
                x, y, marker="." if mark == "o" else mark, s=size, color=ink, linewidths=0.8
            )
    if marked is not None and marked in place:
        axis.axvline(place[marked], color=INK, linewidth=1.2)
    names = [name or "the model" for name in found]
    if len(names) <= _MOST_NAMES:
        axis.set_yticks(range(len(names)), names)
    axis.tick_params(axis="y", length=0, labelsize=7)
    shown = range(0, len(numbers), max(1, len(numbers) // 6))
    axis.set_xticks([*shown], [f"{numbers[column]:,}" for column in shown])
    axis.set_xlabel("forward pass", fontsize=8, color=INK)


def no_headroom_figure(reason: str) -> Figure:
    """Draw what there is to see of a run in which nothing was measured: the reason, a sentence."""
    figure, axis = new_figure(5, 1, alt=reason)
    axis.set_axis_off()
    axis.text(0, 0.5, reason, fontsize=10, color=INK, va="center")
    return figure
