"""The figures of chapter 03. They draw data, and compute nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from torch import Tensor

from amp_course.kit.colours import COLOURS, FAINT, FORMAT_COLOURS, FORMAT_LINES, INK
from amp_course.kit.style import new_figure, title
from amp_course.positions.panel_html import ALONE, SHARED, id_text
from amp_course.positions.sharing import Run

_WRONG, _RIGHT = COLOURS["amp_fp16"], COLOURS["fp32"]
_SMALL_TITLE: dict[str, Any] = {"loc": "left", "fontsize": 9, "color": INK}


def distinct_figure(counts: Mapping[str, Sequence[tuple[int, int]]]) -> Figure:
    """Draw distinct ids over the context length, by format: {"bf16": [(512, 385), …]}."""
    ends = ", ".join(f"{name} {points[-1][1]:,}" for name, points in counts.items())
    longest = max(points[-1][0] for points in counts.values())
    alt = (
        f"Distinct position ids against context length; of {longest:,} tokens each format has: "
        f"{ends}."
    )
    figure, axis = new_figure(7.2, 3.4, alt=alt)
    heights: list[float] = []
    for name, points in sorted(counts.items(), key=lambda item: -item[1][-1][1]):
        lengths, distinct = zip(*points, strict=True)
        axis.plot(lengths, distinct, color=FORMAT_COLOURS[name], ls=FORMAT_LINES[name], lw=2)
        # labels are placed from the top down, so that none overlap
        label = distinct[-1] if not heights else min(distinct[-1], heights[-1] / 1.9)
        heights.append(label)
        axis.text(lengths[-1] * 1.15, label, f"{name}: {distinct[-1]:,}", fontsize=8, va="center")
    axis.set_xscale("log", base=2)
    axis.set_yscale("log", base=2)
    axis.set_xlim(right=lengths[-1] * 12)
    for set_ticks, step in ((axis.set_xticks, 2), (axis.set_yticks, 4)):
        ticks = [2**power for power in range(4, 20, step)]
        set_ticks(ticks, [f"{tick:,}" for tick in ticks])
    axis.minorticks_off()
    axis.set_xlabel("tokens in the context", fontsize=8)
    under = "both axes in powers of two; each line ends with its count"
    title(axis, "Distinct position ids", under)
    return figure


def runs_figure(strips: Mapping[str, Sequence[Run]]) -> Figure:
    """Draw named strips of tokens; a box is one id, as wide as the tokens that share it."""
    counts = "; ".join(
        f"{name}: {', '.join(str(run.count) for run in runs)}" for name, runs in strips.items()
    )
    alt = (
        f"Strips of tokens; each box is one id, as wide as the number of tokens that share it. "
        f"{counts}."
    )
    height = 0.35 + 0.95 * len(strips)
    figure, axes = new_figure(7.2, height, rows=len(strips), squeeze=False, alt=alt)
    for axis, (name, runs) in zip(axes[:, 0], strips.items(), strict=True):
        _strip(axis, runs)
        axis.set_title(name, **_SMALL_TITLE)
    return figure


def angle_error_figure(errors: Mapping[str, Tensor], last_position: int) -> Figure:
    """Draw maps of errors by position and channel pair: {"angles cast": (n, channels) radians}."""
    largest = {name: f"{error.max().item():.2g}" for name, error in errors.items()}
    alt = (
        f"Maps of the angle's error by position, up to {last_position:,}, and channel pair. "
        f"Largest error in radians: {'; '.join(f'{name} {of}' for name, of in largest.items())}."
    )
    figure, axes = _maps(4.6, len(errors), "position", "channel pair", alt)
    for axis, (name, error) in zip(axes.flat, errors.items(), strict=True):
        extent = (0, last_position, error.shape[1] - 0.5, -0.5)
        look = {"interpolation": "nearest", "cmap": "viridis", "norm": LogNorm(1e-4, np.pi)}
        image = axis.imshow(error.T.numpy().clip(1e-4), aspect="auto", extent=extent, **look)
        axis.set_title(f"{name}: up to {largest[name]}", **_SMALL_TITLE)
    bar = figure.colorbar(image, ax=axes, shrink=0.9)
    bar.set_label("error of the turn, radians (log scale)", fontsize=8)
    bar.ax.tick_params(labelsize=8)
    return figure


def offset_score_figure(starts: Tensor, scores: Mapping[str, Tensor], offset: int) -> Figure:
    """Draw q·k at a fixed offset over the position, an axis for each name; the right one last."""
    spreads = {name: (values.max() - values.min()).item() for name, values in scores.items()}
    alt = (
        f"The score of one query and one key, {offset} apart, along the context. Spread, 0 if "
        f"the score is flat: {'; '.join(f'{name} {of:.2g}' for name, of in spreads.items())}."
    )
    position = f"position of the key; the query is {offset} further on"
    figure, axes = _maps(4.0, len(scores), position, "score", alt)
    for number, (axis, (name, values)) in enumerate(zip(axes.flat, scores.items(), strict=True), 1):
        axis.plot(starts, values, ".", ms=2, color=_RIGHT if number == len(scores) else _WRONG)
        axis.set_title(f"{name}: spread {spreads[name]:.2g}", **_SMALL_TITLE)
    return figure


def alibi_figure(keys: Tensor, wrong: tuple[str, Tensor], right: tuple[str, Tensor]) -> Figure:
    """Draw the ALiBi bias of the last keys (n,) for the last query: two named biases (n,)."""
    steps = "; ".join(
        f"{name}: {bias.unique().numel()} different biases" for name, bias in (right, wrong)
    )
    alt = f"ALiBi bias of the last {len(keys)} keys. {steps}."
    figure, axis = new_figure(7.2, 2.6, alt=alt)
    for (name, bias), look in ((right, (_RIGHT, "-", ".")), (wrong, (_WRONG, "--", "s"))):
        axis.plot(keys, bias, label=name, **_line(*look))
    axis.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
    axis.set_xlabel("key", fontsize=8)
    axis.legend(fontsize=8, frameon=False)
    under = "what is added to the score of each; a straight line if it is right"
    title(axis, "ALiBi bias of the last keys", under)
    return figure


def cliff_figure(
    curves: Mapping[str, Sequence[Sequence[tuple[float, float]]]],
    chance: float,
    marks: Sequence[int],
) -> Figure:
    """Draw accuracy over position, a line for each seed: {"fp32 ids": [[(16, 1.0), …], …]}.

    chance: the accuracy of a guess; marks: positions to mark, such as the first collision
    """
    ends = ", ".join(
        f"{name} {seeds[0][0][1]:.2f} and {seeds[0][-1][1]:.2f}" for name, seeds in curves.items()
    )
    alt = (
        f"Accuracy by position; at the first and the last positions: {ends}, a guess {chance:.2f}."
    )
    figure, axis = new_figure(7.2, 3.4, alt=alt)
    looks = (COLOURS["fp32"], "-", "o"), (COLOURS["amp_bf16"], "--", "x")
    for (name, seeds), look in zip(curves.items(), looks, strict=True):
        for number, points in enumerate(seeds):
            label = f"{name}, {len(seeds)} seeds" if number == 0 else None
            axis.plot(*zip(*points, strict=True), label=label, **_line(*look))
    for mark in marks:
        axis.axvline(mark, color=FAINT, lw=0.8, ls=":")
        axis.text(mark + 4, 1.04, f"{mark:,}", fontsize=8, color=FAINT)
    axis.axhline(chance, color=FAINT, lw=0.8)
    axis.text(0, chance + 0.015, "a guess", fontsize=8, color=FAINT)
    axis.set_ylim(0, 1.1)
    axis.set_xlabel("position", fontsize=8)
    axis.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(0, 0.45))
    note = "share of tokens repeated correctly, in bins of 32 positions"
    title(axis, "Accuracy by position", note)
    return figure


def _line(colour: str, style: str, marker: str) -> dict[str, Any]:
    return {"color": colour, "ls": style, "lw": 1.2, "marker": marker, "ms": 4}


def _maps(height: float, count: int, x: str, y: str, alt: str) -> tuple[Figure, Any]:
    """Return a figure with axes in two columns, which share their labels."""
    rows = (count + 1) // 2
    shared: dict[str, Any] = {"sharex": True, "sharey": True, "squeeze": False}
    figure, axes = new_figure(7.6, height, columns=2, rows=rows, alt=alt, **shared)
    for axis in axes[-1]:
        axis.set_xlabel(x, fontsize=8)
    for row in axes:
        row[0].set_ylabel(y, fontsize=8)
    return figure, axes


def _strip(axis: Any, runs: Sequence[Run]) -> None:
    """Draw runs as boxes with their ids below."""
    look: dict[str, Any] = {"align": "edge", "edgecolor": "white", "linewidth": 1.2}
    for run in runs:
        colour, hatch = SHARED if run.count > 1 else ALONE
        axis.bar(run.start, 1, width=run.count, color=colour, hatch=hatch, **look)
    middles = [run.start + run.count / 2 for run in runs]
    names = [id_text(run.value) for run in runs]
    turn: dict[str, Any] = {"rotation": 60, "ha": "right"} if len(runs) > 12 else {}
    axis.set_xticks(middles, names, fontsize=8, **turn)
    axis.tick_params(axis="x", length=0)
    axis.set_yticks([])
    axis.set_xlim(runs[0].start, runs[-1].start + runs[-1].count)
    axis.spines[["left", "bottom"]].set_visible(False)
