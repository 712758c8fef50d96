"""The chapter's figures. They draw what was measured, and measure nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import NullFormatter

from amp_course.debugging.curves import Curve, describe
from amp_course.debugging.headroom import LEVELS, describe_levels, level_of
from amp_course.debugging.ranges import RangeWatch, Reading
from amp_course.debugging.spikes import BAD_STEP, Spike
from amp_course.kit.colours import FAINT, INK
from amp_course.kit.style import new_figure, title
from amp_course.kit.svg import is_pale
from amp_course.kit.tensors import short
from amp_course.watching.readings import Kind

_MOST_NAMES = 40
# What a curve shows → its colour, and limits that make the trainings comparable
_CURVES: dict[str, tuple[str, tuple[float, float] | None]] = {
    "loss": ("#0072B2", (0.05, 5e3)),
    "loss scale": ("#D55E00", None),
    "distance": ("#009E73", (1e-6, 1e4)),
}
_GUARDS = {  # a guard → its label, colour and line
    "none": ("as it is", "#D55E00", "-"),
    "clip": ("clipped to a norm of 1", "#0072B2", "--"),
    "skip": ("update left out", "#009E73", ":"),
}
_SIGNS = {"x": "×", "o": "•", "_": "–", "|": "|"}  # a marker → its sign in the legend


def headroom_figure(ranges: RangeWatch) -> Figure:
    """Draw maps of a run's activations and their gradients: a row for each module, a column for
    each measured pass, from lost (blue) to overflowing (red).

    Raises ValueError if neither was measured.
    """
    kinds: tuple[Kind, ...] = ("activation", "activation gradient")
    maps = {kind: found for kind in kinds if (found := ranges.of(kind))}
    if not maps:
        raise ValueError(
            "no activation and no activation gradient was measured: train the model while it is "
            "watched."
        )
    rows = max(map(len, maps.values()))
    many = f"Maps of {len(maps)} kinds" if len(maps) > 1 else "A map of one kind"
    shown = "; ".join(f"{kind}: {describe_levels(found)}" for kind, found in maps.items())
    figure, axes = new_figure(
        3.9 * len(maps) + 0.4,
        min(9.0, 1.5 + 0.2 * rows),
        columns=len(maps),
        squeeze=False,
        alt=f"{many} of tensor by module and forward pass, for {short(ranges.dtype)}. {shown}.",
    )
    for axis, (kind, found) in zip(axes[0], maps.items(), strict=True):
        _map(axis, found)
        title(axis, f"{kind}s", f"by module and forward pass, for {short(ranges.dtype)}")
    patches = []
    for level in LEVELS:
        label = f"{level.name} ({_SIGNS[level.marker]})" if level.marker else level.name
        patches.append(Patch(facecolor=level.colour, edgecolor=FAINT, linewidth=0.5, label=label))
    columns = 3 if len(maps) > 1 else 2
    figure.legend(
        handles=patches, loc="outside lower center", ncols=columns, fontsize=8, frameon=False
    )
    return figure


def curves_figure(curves: Mapping[str, Curve]) -> Figure:
    """Draw loss, loss scale and the weights' distance by step, four trainings in a row."""
    rows = math.ceil(len(curves) / 4)
    shown = ". ".join(f"{letter}: {describe(curve)}" for letter, curve in curves.items())
    alt = f"Three curves of each training by step. {shown}."
    figure, axes = new_figure(
        10.0, 3.9 * rows, columns=4, rows=3 * rows, sharex=True, squeeze=False, alt=alt
    )
    for place, (letter, curve) in enumerate(curves.items()):
        column = axes[3 * (place // 4) : 3 * (place // 4) + 3, place % 4]
        values = ("loss", curve.losses), ("loss scale", curve.scales), ("distance", curve.distances)
        for axis, (name, numbers) in zip(column, values, strict=True):
            steps = range(1, len(numbers) + 1)
            finite = np.where(np.isfinite(numbers), numbers, np.nan)
            colour, limits = _CURVES[name]
            axis.plot(steps, finite, color=colour, linewidth=1.3, marker=".", markersize=2.5)
            for gap in np.flatnonzero(np.isnan(finite)):
                axis.axvline(gap + 1, color=FAINT, linewidth=0.5, alpha=0.5)
            axis.set_yscale("log", base=2 if name == "loss scale" else 10)
            axis.margins(y=0.15)
            if limits:
                axis.set_ylim(limits)
                axis.yaxis.set_minor_formatter(NullFormatter())
            if place % 4 == 0:
                axis.set_ylabel(name, fontsize=8, color=INK)
        title(column[0], letter)
        if place // 4 == rows - 1:
            column[-1].set_xlabel("step (grey: inf or NaN)", fontsize=8, color=INK)
    return figure


def spike_figure(runs: Sequence[Spike]) -> Figure:
    """Draw loss and gradient norm by step, a line for each way to handle a bad batch."""
    shown = "; ".join(
        f"{_GUARDS[run.guard][0]}: loss {run.losses[BAD_STEP]:.2g} in the next step" for run in runs
    )
    alt = f"Loss and gradient norm by step; one batch is bad, at step {BAD_STEP}. {shown}."
    figure, axes = new_figure(7.6, 2.9, columns=2, alt=alt)
    for run in runs:
        label, colour, style = _GUARDS[run.guard]
        for axis, numbers in zip(axes, (run.losses, run.norms), strict=True):
            steps = range(1, len(numbers) + 1)
            axis.plot(steps, numbers, style, color=colour, linewidth=1.4, label=label)
    for axis, name in zip(axes, ("loss", "gradient norm"), strict=True):
        axis.set_yscale("log")
        axis.set_xlabel("step", fontsize=8, color=INK)
        title(axis, name, f"by step; the batch of step {BAD_STEP} is bad")
    axes[0].legend(fontsize=8, frameon=False)
    return figure


def _map(axis: Any, found: dict[str, list[Reading]]) -> None:
    numbers = sorted({reading.number for readings in found.values() for reading in readings})
    grid = np.full((len(found), len(numbers)), np.nan)
    for row, readings in enumerate(found.values()):
        for reading in readings:  # a module that ran more than once in a pass shows its hottest
            cell = row, numbers.index(reading.number)
            grid[cell] = np.fmax(grid[cell], level_of(reading))
    colours = ListedColormap([level.colour for level in LEVELS])
    limits = {"vmin": -0.5, "vmax": len(LEVELS) - 0.5}
    axis.imshow(grid, cmap=colours, **limits, aspect="auto", interpolation="nearest")
    for place, level in enumerate(LEVELS):
        if level.marker:
            y, x = np.nonzero(grid == place)
            marker = "." if level.marker == "o" else level.marker
            size = 9 if len(numbers) <= 60 else 3
            ink = INK if is_pale(level.colour) else "white"
            axis.scatter(x, y, marker=marker, s=size, color=ink, linewidths=0.8)
    names = [name or "the model" for name in found]
    if len(names) <= _MOST_NAMES:
        axis.set_yticks(range(len(names)), names)
    axis.tick_params(axis="y", length=0, labelsize=7)
    shown = range(0, len(numbers), max(1, len(numbers) // 6))
    axis.set_xticks([*shown], [f"{numbers[column]:,}" for column in shown])
    axis.set_xlabel("forward pass", fontsize=8, color=INK)
