"""The figures of block formats: number lines of one block, and errors by format."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from amp_course.bits.numerals import raised
from amp_course.frontiers.block_errors import FormatError, RowErrors
from amp_course.kit.colours import FAINT, FORMAT_COLOURS, INK, ZONES
from amp_course.kit.style import FEWER_DOTS, new_figure, title

_MARKS = {"down": "v", "nearest": "o", "up": "^", None: "s"}  # the rounding of a scale
# Within a row, so that equal errors do not hide each other.
_SHIFTS = {"down": -0.22, "nearest": 0.0, "up": 0.22, None: 0.0}
_CAPTIONS = {
    "down": "scale down",
    "nearest": "scale to nearest",
    "up": "scale up",
    None: "scale not a power of two",
}


def block_line_figure(lines: Sequence[RowErrors]) -> Figure:
    """Draw, a row for each format, the numbers that the block can hold as ticks, and its values
    falling on them.
    """
    summary = "; ".join(
        f"{line.block_format.name} has {len(line.grid)} numbers up to {line.grid[-1]:.3g}; values "
        f"that become 0: {sum(line.zeroed)}"
        for line in lines
    )
    alt = (
        f"Number lines of one block of {len(lines[0].values)} values, rounded to each format: "
        f"{summary}."
    )
    options = {"rows": len(lines), "sharex": True, "squeeze": False}
    figure, axes = new_figure(7.6, 0.4 + 0.95 * len(lines), alt=alt, dots=FEWER_DOTS, **options)
    reach = 1.06 * max(abs(number) for line in lines for number in (*line.values, *line.grid))
    for axis, line in zip(axes[:, 0], lines, strict=True):
        element = line.block_format.element.name
        axis.vlines(line.grid, -0.28, 0.28, color=FORMAT_COLOURS.get(element, INK), lw=1.1)
        for exact, rounded, lost in zip(line.values, line.rounded, line.zeroed, strict=True):
            colour, style = (ZONES["lost"][0], "o--") if lost else (FAINT, "o-")
            axis.plot([exact, rounded], [1, 0.3], style, color=colour, lw=0.8, ms=3, markevery=[0])
        axis.set_xlim(-reach, reach)
        axis.set_ylim(-0.4, 1.15)
        axis.set_yticks([])
        axis.spines["left"].set_visible(False)
        title(axis, line.block_format.name)
        note = f"{len(line.grid)} numbers, scale {_scale_text(line.scales[0])}"
        at_right = {"transform": axis.transAxes, "ha": "right", "va": "bottom"}
        axis.text(1, 1.06, note, fontsize=8, color=FAINT, **at_right)
    return figure


def format_error_figure(errors: Sequence[FormatError]) -> Figure:
    """Draw each format's relative error, and the share of numbers that became 0; a column for each
    tensor, a row for each format.
    """
    tensors = list(dict.fromkeys(result.tensor for result in errors))
    formats = list(dict.fromkeys(result.format for result in errors))
    alt, high = _errors_in_words(errors, tensors, formats), 1.6 + 0.5 * len(formats)
    options: dict[str, Any] = {"sharey": True, "sharex": "row", "squeeze": False}
    figure, axes = new_figure(8, high, len(tensors), 2, alt=alt, dots=FEWER_DOTS, **options)
    bits = {result.format: result.bits for result in errors}
    positive = [100 * result.error for result in errors if result.error] or [1.0, 100.0]
    labels = [f"{name} · {bits[name]:.3g} bits" for name in formats]
    for column, tensor in enumerate(tensors):
        results = [result for result in errors if result.tensor == tensor]
        for axis, field in ((axes[0][column], "error"), (axes[1][column], "zeroed")):
            for result in results:
                percent = 100 * getattr(result, field)
                if field == "error" and not percent:
                    percent = math.nan  # a log axis has no 0
                y = formats.index(result.format) + _SHIFTS[result.rounding]
                (mark,) = axis.plot(percent, y, _MARKS[result.rounding], ms=5, mfc="none", mew=1.2)
                mark.set(color=FORMAT_COLOURS.get(result.element, INK), clip_on=False)
            for row in range(len(formats)):
                axis.axhline(row, color="#e5e5e5", lw=0.6, zorder=0)
            axis.set_yticks(range(len(formats)), labels, fontsize=8)
            axis.set_ylim(len(formats) - 0.5, -0.5)
            axis.tick_params(axis="y", length=0)
        axes[0][column].set_xscale("log")
        axes[0][column].set_xlim(min(positive) / 1.4, max(positive) * 1.4)
        axes[0][column].xaxis.set_major_formatter(lambda percent, _: f"{percent:g}")
        most = max(1.0, 104 * max(result.zeroed for result in errors))
        axes[1][column].set_xlim(-0.04 * most, most)
        title(axes[0][column], tensor, "relative error, %, log scale")
        title(axes[1][column], "", "became 0, % of the numbers")
    used = {result.rounding for result in errors}
    style: dict[str, Any] = {"color": INK, "mfc": "none", "ls": "", "ms": 5.5}
    handles = [
        Line2D([], [], marker=mark, label=_CAPTIONS[rounding], **style)
        for rounding, mark in _MARKS.items()
        if rounding in used
    ]
    figure.legend(handles=handles, fontsize=8, frameon=False, ncols=4, loc="outside lower center")
    return figure


def _errors_in_words(
    errors: Sequence[FormatError], tensors: Sequence[str], formats: Sequence[str]
) -> str:
    summaries = []
    for tensor in tensors:
        listed = []
        for name in formats:
            results = [r for r in errors if (r.tensor, r.format) == (tensor, name)]
            best = min(results, key=lambda r: r.error)
            listed.append(f"{name} {best.error:.2%}, {best.zeroed:.1%} became 0")
        summaries.append(f"{tensor}: {', '.join(listed)}")
    return (
        f"Relative error of each format, with the rounding of the scale that suits it best: "
        f"{'; '.join(summaries)}."
    )


def _scale_text(scale: float) -> str:
    """Write a scale: 0.0078125 → "2⁻⁷", 0.0077 → "0.0077"."""
    significand, exponent = math.frexp(scale)
    return f"2{raised(exponent - 1)}" if significand == 0.5 else f"{scale:.3g}"
