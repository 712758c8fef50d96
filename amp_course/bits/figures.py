"""The figures of chapter 01. They take formats and values that were computed, and draw them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from amp_course.bits.formats import FloatFormat
from amp_course.kit.colours import FAINT, FIELDS, FORMAT_COLOURS, FORMAT_LINES, INK
from amp_course.kit.style import new_figure, title


def layouts_figure(formats: Sequence[FloatFormat]) -> Figure:
    """Draw the fields of formats to scale, one bit one square, one format a row."""
    rows = [
        f"{fmt.name} 1 sign, {fmt.exponent_bits} exponent, {fmt.significand_bits} significand bits"
        for fmt in formats
    ]
    alt = f"The bits of each format, to scale: {'; '.join(rows)}."
    figure, axis = new_figure(8, 0.7 + 0.32 * len(formats), alt=alt)
    for row, fmt in enumerate(formats[::-1]):
        left = 0
        widths = (1, fmt.exponent_bits, fmt.significand_bits)
        for (name, (colour, letter)), width in zip(FIELDS.items(), widths, strict=True):
            axis.barh(row, width, left=left, height=0.72, color=colour, edgecolor="white", lw=1.5)
            for edge in range(left + 1, left + width):
                axis.plot([edge, edge], [row - 0.36, row + 0.36], color="white", lw=0.5, alpha=0.45)
            label = letter if width < 5 else f"{width} {name}"
            if width > 1 or fmt.bits < 40:
                size = 7 if width < 3 else 8
                centred = {"ha": "center", "va": "center"}
                axis.text(left + width / 2, row, label, color="white", fontsize=size, **centred)
            left += width
        axis.text(left + 0.6, row, f"{fmt.bits} bits", fontsize=8, va="center", color=INK)
    axis.set_yticks(range(len(formats)), [fmt.name for fmt in formats[::-1]], fontsize=8)
    axis.set_xlim(0, max(fmt.bits for fmt in formats) + 6)
    axis.xaxis.set_visible(False)
    axis.spines[["left", "bottom"]].set_visible(False)
    axis.tick_params(left=False)
    title(axis, "Where the bits go", "s sign, e exponent, m significand; one square is one bit")
    return figure


def number_line_figure(
    lines: Sequence[tuple[str, Mapping[FloatFormat, Sequence[float]]]],
) -> Figure:
    """Draw the values of formats as ticks on number lines:
    one panel for each (title, {format: values}).
    """
    drawn = [
        f"{head} ({', '.join(f'{len(of)} values of {fmt.name}' for fmt, of in rows.items())})"
        for head, rows in lines
    ]
    height = 0.95 * len(lines) + 0.3 * sum(len(rows) for _, rows in lines)
    alt = f"Number lines with a tick for each value. {'; '.join(drawn)}."
    figure, axes = new_figure(8, height, rows=len(lines), squeeze=False, alt=alt)
    for axis, (head, rows) in zip(axes.flat, lines, strict=True):
        for row, (fmt, values) in enumerate(list(rows.items())[::-1]):
            normal = [value for value in values if value >= fmt.smallest_normal]
            below = [value for value in values if value < fmt.smallest_normal]
            for some, tall in ((normal, 0.38), (below, 0.2)):
                colour = FORMAT_COLOURS[fmt.name]
                axis.vlines(some, row - tall, row + tall, color=colour, lw=1.3)
        axis.set_yticks(range(len(rows)), [fmt.name for fmt in list(rows)[::-1]], fontsize=8)
        axis.set_ylim(-0.6, len(rows) - 0.4)
        axis.spines["left"].set_visible(False)
        axis.tick_params(axis="y", left=False)
        title(axis, head)
    return figure


def binades_figure(counts: Mapping[FloatFormat, Mapping[int, int]]) -> Figure:
    """Draw how many positive values each format has from 2^e up to 2^(e+1): {format: {e:
    count}}.
    """
    peaks = [
        f"{fmt.name} has up to {max(by.values())}, from 2^{min(by)} to 2^{max(by) + 1}"
        for fmt, by in counts.items()
    ]
    alt = (
        f"How many values lie between one power of two and the next: {'; '.join(peaks)}; fewer "
        f"towards the small end."
    )
    figure, axis = new_figure(7.2, 3, alt=alt)
    for fmt, by_exponent in counts.items():
        edges, heights = [*by_exponent, max(by_exponent) + 1], [*by_exponent.values(), math.nan]
        axis.step(edges, heights, where="post", **_look(fmt))
    axis.set_yscale("log", base=2)
    axis.set_xlabel("power of two", fontsize=8)
    _legend_above(axis, len(counts))
    subtitle = "log scale; the slopes on the left are subnormals"
    title(axis, "Values from one power of two to the next", subtitle)
    return figure


def ulp_figure(gaps: Mapping[FloatFormat, Sequence[float]], exponents: Sequence[int]) -> Figure:
    """Draw the spacing of formats against magnitude: {format:
    the ulp at 2^e for each e in exponents}.
    """
    alt = (
        f"The gap to the next number against magnitude, for {', '.join(fmt.name for fmt in gaps)}: "
        "each line doubles with every power of two and is flat where numbers are subnormal."
    )
    figure, axis = new_figure(7.2, 3.4, alt=alt)
    sizes = [math.ldexp(1.0, exponent) for exponent in exponents]
    for fmt, values in gaps.items():
        axis.plot(sizes, values, **_look(fmt))
    axis.axhline(2, color=FAINT, lw=0.8, ls=":")
    note = " gap 2: every integer is exact up to where a line gets here"
    axis.text(sizes[0], 2, note, fontsize=8, color=FAINT, va="bottom")
    axis.set_xscale("log", base=2)
    axis.set_yscale("log", base=2)
    axis.set_xlabel("magnitude |x|", fontsize=8)
    _legend_above(axis, len(gaps))
    title(axis, "The gap to the next number (ulp)", "log-log; flat where numbers are subnormal")
    return figure


def range_figure(formats: Sequence[FloatFormat]) -> Figure:
    """Draw each format's range, subnormals hatched, and its decimal digits of precision."""
    rows = [
        f"{fmt.name} from {fmt.smallest_subnormal:.2g} to {fmt.max:.3g}, {_digits(fmt):.1f} digits"
        for fmt in formats
    ]
    alt = f"Range and decimal digits of each format: {'; '.join(rows)}."
    figure, (left, right) = new_figure(
        8, 0.9 + 0.3 * len(formats), columns=2, width_ratios=[3, 1.1], alt=alt
    )
    for row, fmt in enumerate(formats[::-1]):
        colour = FORMAT_COLOURS[fmt.name]
        ends = (fmt.smallest_subnormal, fmt.smallest_normal, fmt.max)
        low, normal, high = map(math.log10, ends)
        left.barh(row, high - normal, left=normal, color=colour, height=0.62)
        hatched = {"color": "white", "edgecolor": colour, "hatch": "////", "lw": 0.8}
        left.barh(row, normal - low, left=low, height=0.62, **hatched)
        digits = _digits(fmt)
        right.barh(row, digits, color=colour, height=0.62)
        right.text(digits, row, f" {digits:.1f}", fontsize=8, va="center")
    left.set_yticks(range(len(formats)), [fmt.name for fmt in formats[::-1]], fontsize=8)
    left.axvline(0, color=INK, lw=0.8, ls=":")
    left.set_xlabel("log₁₀ |x|", fontsize=8)
    right.set_yticks([])
    right.set_xlim(0, max(map(_digits, formats)) * 1.3)
    right.set_xlabel("decimal digits", fontsize=8)
    title(left, "Range", "hatched: subnormals, with fewer bits the further left")
    title(right, "Precision", "(significand bits + 1) · log₁₀ 2")
    return figure


def _look(fmt: FloatFormat) -> dict[str, Any]:
    colour, style = FORMAT_COLOURS[fmt.name], FORMAT_LINES[fmt.name]
    return {"color": colour, "ls": style, "lw": 1.8, "label": fmt.name}


def _legend_above(axis: Any, columns: int) -> None:
    place = {"loc": "lower right", "bbox_to_anchor": (1, 1)}
    axis.legend(fontsize=8, frameon=False, ncols=columns, **place)


def _digits(fmt: FloatFormat) -> float:
    return (fmt.significand_bits + 1) * math.log10(2)
