"""The figures of block formats: number lines of one block, and errors by format. Data in, Figure
out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from amp_course.bits.numerals import raised
from amp_course.frontiers.block_errors import BlockLine, FormatError
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


def block_line_figure(lines: Sequence[BlockLine]) -> Figure:
    """Draw the numbers that a block can hold in each format as ticks,
    and its values falling on them; one format a row.
    """
    said = []
    for drawn in lines:
        lost = sum(after == 0 != one for one, after in _pairs(drawn))
        said.append(
            f"{drawn.block_format.name} has {len(drawn.grid)} numbers up to "
            f"{drawn.grid[-1]:.3g}; values that become 0: {lost}"
        )
    alt = (
        f"Number lines of one block of {len(lines[0].values)} values, rounded to each format: "
        f"{'; '.join(said)}."
    )
    figure, axes = new_figure(
        7.6,
        0.4 + 0.95 * len(lines),
        rows=len(lines),
        sharex=True,
        squeeze=False,
        alt=alt,
        dots=FEWER_DOTS,
    )
    reach = 1.06 * max(abs(one) for drawn in lines for one in (*drawn.values, *drawn.grid))
    for axis, drawn in zip(axes[:, 0], lines, strict=True):
        colour = FORMAT_COLOURS.get(drawn.block_format.element.name, INK)
        axis.vlines(drawn.grid, -0.28, 0.28, color=colour, lw=1.1)
        for exact, rounded in _pairs(drawn):
            lost = rounded == 0 != exact
            axis.plot(
                [exact, rounded],
                [1, 0.3],
                color=ZONES["lost"][0] if lost else FAINT,
                lw=0.8,
                ls="--" if lost else "-",
                marker="o",
                ms=3,
                markevery=[0],
            )
        axis.set_xlim(-reach, reach)
        axis.set_ylim(-0.4, 1.15)
        axis.set_yticks([])
        axis.spines["left"].set_visible(False)
        title(axis, drawn.block_format.name)
        told = f"{len(drawn.grid)} numbers, scale {_scale_text(drawn.scale)}"
        axis.text(
            1,
            1.06,
            told,
            transform=axis.transAxes,
            fontsize=8,
            color=FAINT,
            ha="right",
            va="bottom",
        )
    return figure


def _pairs(drawn: BlockLine) -> Iterator[tuple[float, float]]:
    return zip(drawn.values, drawn.rounded, strict=True)


def format_error_figure(errors: Sequence[FormatError]) -> Figure:
    """Draw each format's relative error and the share of numbers that became 0:
    one column a tensor, one row a format.
    """
    tensors, formats = (
        [*dict.fromkeys(names)]
        for names in zip(*((e.tensor, e.format) for e in errors), strict=True)
    )
    figure, axes = new_figure(
        8,
        1.6 + 0.5 * len(formats),
        columns=len(tensors),
        rows=2,
        sharey=True,
        sharex="row",
        squeeze=False,
        alt=_errors_in_words(errors, tensors),
        dots=FEWER_DOTS,
    )
    bits = {one.format: one.bits for one in errors}
    positive = [100 * one.error for one in errors if one.error] or [1.0, 100.0]
    labels = [f"{name} · {bits[name]:.3g} bits" for name in formats]
    for column, tensor in enumerate(tensors):
        of = [one for one in errors if one.tensor == tensor]
        for axis, field in ((axes[0][column], "error"), (axes[1][column], "zeroed")):
            for one in of:
                colour = FORMAT_COLOURS.get(one.element, INK)
                percent = 100 * getattr(one, field)
                # a log axis has no 0
                axis.plot(
                    percent if percent or field == "zeroed" else math.nan,
                    formats.index(one.format) + _SHIFTS[one.rounding],
                    _MARKS[one.rounding],
                    color=colour,
                    ms=5,
                    mfc="none",
                    mew=1.2,
                    clip_on=False,
                )
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
    used = [rounding for rounding in _MARKS if any(one.rounding == rounding for one in errors)]
    handles = [
        Line2D(
            [], [], marker=_MARKS[key], color=INK, mfc="none", ls="", label=_CAPTIONS[key], ms=5.5
        )
        for key in used
    ]
    figure.legend(handles=handles, fontsize=8, frameon=False, ncols=4, loc="outside lower center")
    return figure


def _errors_in_words(errors: Sequence[FormatError], tensors: Sequence[str]) -> str:
    said = []
    for tensor in tensors:
        best: dict[str, FormatError] = {}
        for one in errors:
            if one.tensor == tensor and (
                one.format not in best or one.error < best[one.format].error
            ):
                best[one.format] = one
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
