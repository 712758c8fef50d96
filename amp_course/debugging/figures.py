"""The chapter's figures. They take what was measured, and measure nothing."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from amp_course.autocast.records import short
from amp_course.debugging.ranges import RangeWatch, Reading
from amp_course.debugging.ranges.readings import Kind
from amp_course.kit.style import FAINT, INK, new_figure, title

# From cold to hot: what to call it, its colour, and the mark that is the second cue.
WEATHER = (
    ("more than half lost", "#0072B2", "o"),
    ("more than a tenth lost", "#9ecae1", ""),
    ("fine", "#f0f0f0", ""),
    ("4 doublings left", "#FBE3A0", ""),
    ("2 doublings left", "#E69F00", ""),
    ("overflows, inf or NaN", "#B30000", "x"),
)
_MOST_NAMES = 40


def weather_of(reading: Reading) -> int:
    """Return the place in WEATHER of a reading: heat comes before cold.

    Example: 5 for a largest value beyond the format, 0 if more than half of the values are lost
    """
    if not reading.headroom >= 0:
        return 5
    if reading.headroom <= 2:
        return 4
    if reading.headroom <= 4:
        return 3
    return 0 if reading.lost > 0.5 else 1 if reading.lost > 0.1 else 2


def weather_figure(ranges: RangeWatch, *kinds: Kind) -> Figure:
    """Draw maps of a run: a row for each module, a column for each measured pass, from lost (blue) to overflowing (red).

    kinds: one map each; by default activations and their gradients. Raises ValueError if none of them was measured.
    """
    chosen: tuple[Kind, ...] = kinds or ("activation", "activation gradient")
    maps = {kind: ranges.of(kind) for kind in chosen}
    maps = {kind: found for kind, found in maps.items() if found}
    if not maps:
        raise ValueError(f"no {' and no '.join(chosen)} was measured: train the model while it is watched.")
    rows = max(map(len, maps.values()))
    told = "; ".join(f"{kind}: {_told(found)}" for kind, found in maps.items())
    figure, axes = new_figure(
        3.9 * len(maps) + 0.4, min(9.0, 1.5 + 0.2 * rows), columns=len(maps), squeeze=False,
        alt=f"Maps of {len(maps)} kinds of tensor by module and forward pass, for {short(ranges.dtype)}. {told}.",
    )  # fmt: skip
    for axis, (kind, found) in zip(axes[0], maps.items(), strict=True):
        _map(axis, found)
        title(axis, f"{kind}s", f"by module and forward pass, for {short(ranges.dtype)}")
    shown = [
        Patch(facecolor=colour, edgecolor=FAINT, linewidth=0.5, label=_legend(name, mark))
        for name, colour, mark in WEATHER
    ]
    figure.legend(handles=shown, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    return figure


def _legend(name: str, mark: str) -> str:
    return f"{name} ({'×' if mark == 'x' else '•'})" if mark else name


def _map(axis: Any, found: dict[str, list[Reading]]) -> None:
    numbers = sorted({reading.number for readings in found.values() for reading in readings})
    place = {number: column for column, number in enumerate(numbers)}
    grid = np.full((len(found), len(numbers)), np.nan)
    for row, readings in enumerate(found.values()):
        for reading in readings:  # a module that ran more than once in a pass shows its hottest
            weather = weather_of(reading)
            old = grid[row, place[reading.number]]
            grid[row, place[reading.number]] = weather if math.isnan(old) else max(old, weather)
    axis.imshow(
        grid, cmap=ListedColormap([colour for _, colour, _ in WEATHER]), vmin=-0.5, vmax=len(WEATHER) - 0.5,
        aspect="auto", interpolation="nearest",
    )  # fmt: skip
    for weather, (_, _, mark) in enumerate(WEATHER):
        if mark:
            y, x = np.nonzero(grid == weather)
            size = 9 if len(numbers) <= 60 else 3
            axis.scatter(x, y, marker="x" if mark == "x" else ".", s=size, color="white", linewidths=0.8)
    names = [name or "the model" for name in found]
    if len(names) <= _MOST_NAMES:
        axis.set_yticks(range(len(names)), names)
    axis.tick_params(axis="y", length=0, labelsize=7)
    shown = range(0, len(numbers), max(1, len(numbers) // 6))
    axis.set_xticks([*shown], [f"{numbers[column]:,}" for column in shown])
    axis.set_xlabel("forward pass", fontsize=8, color=INK)


def _told(found: dict[str, list[Reading]]) -> str:
    """Say what a map shows: when each kind of weather came up first, and where."""
    parts = []
    for weather in (5, 4, 0):
        first = min(
            (reading for readings in found.values() for reading in readings if weather_of(reading) == weather),
            key=lambda reading: reading.number,
            default=None,
        )
        if first is not None:
            parts.append(f"{WEATHER[weather][0]} first in pass {first.number:,}, {first.module or 'the model'}")
    return ", ".join(parts) or "nothing lost or near overflow"
