"""The figures of block formats: number lines of one block, and errors by format. Data in, Figure
out.
"""

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
    """Draw the numbers that a block can hold in each format as ticks,
    and its values falling on them; one format a row.
    """
    said = []
    for drawn in lines:
        said.append(
            f"{drawn.block_format.name} has {len(drawn.grid)} numbers up to "
            f"{drawn.grid[-1]:.3g}; values that become 0: {sum(drawn.zeroed)}"
        )
    alt = (
        f"Number lines of one block of {len(lines[0].values)} values, rounded to each format: "
        f"{'; '.join(said)}."
    )
    options = {"rows": len(lines), "sharex": True, "squeeze": False}
    figure, axes = new_figure(7.6, 0.4 + 0.95 * len(lines), alt=alt, dots=FEWER_DOTS, **options)
    reach = 1.06 * max(abs(one) for drawn in lines for one in (*drawn.values, *drawn.grid))
    for axis, drawn in zip(axes[:, 0], lines, strict=True):
        element = drawn.block_format.element.name
        axis.vlines(drawn.grid, -0.28, 0.28, color=FORMAT_COLOURS.get(element, INK), lw=1.1)
        for exact, rounded, lost in zip(drawn.values, drawn.rounded, drawn.zeroed, strict=True):
            colour, line = (ZONES["lost"][0], "o--") if lost else (FAINT, "o-")
            axis.plot([exact, rounded], [1, 0.3], line, color=colour, lw=0.8, ms=3, markevery=[0])
        axis.set_xlim(-reach, reach)
        axis.set_ylim(-0.4, 1.15)
        axis.set_yticks([])
        axis.spines["left"].set_visible(False)
        title(axis, drawn.block_format.name)
        told = f"{len(drawn.grid)} numbers, scale {_scale_text(drawn.scales[0])}"
        at_right = {"transform": axis.transAxes, "ha": "right", "va": "bottom"}
        axis.text(1, 1.06, told, fontsize=8, color=FAINT, **at_right)
    return figure


def format_error_figure(errors: Sequence[FormatError]) -> Figure:
    """Draw each format's relative error and the share of numbers that became 0:
    one column a tensor, one row a format.
    """
    tensors = list(dict.fromkeys(one.tensor for one in errors))
    formats = list(dict.fromkeys(one.format for one in errors))
    alt, high = _errors_in_words(errors, tensors), 1.6 + 0.5 * len(formats)
    options: dict[str, Any] = {"sharey": True, "sharex": "row", "squeeze": False}
    figure, axes = new_figure(8, high, len(tensors), 2, alt=alt, dots=FEWER_DOTS, **options)
    bits = {one.format: one.bits for one in errors}
    positive = [100 * one.error for one in errors if one.error] or [1.0, 100.0]
    labels = [f"{name} · {bits[name]:.3g} bits" for name in formats]
    for column, tensor in enumerate(tensors):
        of = [one for one in errors if one.tensor == tensor]
        for axis, field in ((axes[0][column], "error"), (axes[1][column], "zeroed")):
            for one in of:
                percent = 100 * getattr(one, field)
                if field == "error" and not percent:
                    percent = math.nan  # a log axis has no 0
                y = formats.index(one.format) + _SHIFTS[one.rounding]
                (mark,) = axis.plot(percent, y, _MARKS[one.rounding], ms=5, mfc="none", mew=1.2)
                mark.set(color=FORMAT_COLOURS.get(one.element, INK), clip_on=False)
            for row in range(len(formats)):
                axis.axhline(row, color="#e5e5e5", lw=0.6, zorder=0)
            axis.set_yticks(range(len(formats)), labels, fontsize=8)
            axis.set_ylim(len(formats) - 0.5, -0.5)
            axis.tick_params(axis="y", length=0)
        axes[0][column].set_xscale("log")
        axes[0][column].set_xlim(min(positive) / 1.4, max(positive) * 1.4)
        axes[0][column].xaxis.set_major_formatter(lambda percent, _: f"{percent:g}")
        most = max(1.0, 104 * max(one.zeroed for one in errors))
        axes[1][column].set_xlim(-0.04 * most, most)
        title(axes[0][column], tensor, "relative error, %, log scale")
        title(axes[1][column], "", "became 0, % of the numbers")
    used = {one.rounding for one in errors}
    look: dict[str, Any] = {"color": INK, "mfc": "none", "ls": "", "ms": 5.5}
    handles = [
        Line2D([], [], marker=mark, label=_CAPTIONS[rounding], **look)
        for rounding, mark in _MARKS.items()
        if rounding in used
    ]
    figure.legend(handles=handles, fontsize=8, frameon=False, ncols=4, loc="outside lower center")
    return figure


def _errors_in_words(errors: Sequence[FormatError], tensors: Sequence[str]) -> str:
    said = []
    for tensor in tensors:
        best: dict[str, FormatError] = {}
        for one in errors:
            if one.tensor == tensor:
                best[one.format] = min(best.get(one.format, one), one, key=lambda each: each.error)
        listed = ", ".join(
            f"{name} {one.error:.2%}, {one.zeroed:.1%} became 0" for name, one in best.items()
        )
        said.append(f"{tensor}: {listed}")
    return (
        f"Relative error of each format, with the rounding of the scale that suits it best: "
        f"{'; '.join(said)}."
    )


def _scale_text(scale: float) -> str:
    """Write a scale: 0.0078125 → "2⁻⁷", 0.0077 → "0.0077"."""
    significand, exponent = math.frexp(scale)
    return f"2{raised(exponent - 1)}" if significand == 0.5 else f"{scale:.3g}"
