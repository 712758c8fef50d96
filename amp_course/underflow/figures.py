"""The figures of chapter 02. They take numbers that were computed, and compute nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from amp_course.bits.formats import FloatFormat
from amp_course.kit.colours import FAINT, FORMAT_COLOURS, INK
from amp_course.kit.colours import ZONES as ZONE_STYLES
from amp_course.kit.markup import percent
from amp_course.kit.style import new_figure, title
from amp_course.underflow.zones import ZONES, ZoneHistogram, edges

_FP16, _BF16, _FP32 = (FORMAT_COLOURS[name] for name in ("fp16", "bf16", "fp32"))
# a colour and a linestyle for each curve of a figure, in the order of the caller's data
_TOTALS = ((_FP16, "--"), (_BF16, "-."), (_FP32, "-"))
_WAYS = ((_FP16, "--"), (INK, "-."), ("#CC79A7", "-"), (_FP32, ":"))
_PATHS = ((INK, "--"), (_FP16, "-"), (_BF16, "-."), (_BF16, ":"))
_EXACT: dict[str, Any] = {"color": FAINT, "lw": 4, "alpha": 0.4}
_VISIBLE = 0.005  # of a layer's tallest bar: a lower bar may be outside the picture


def gradient_figure(
    layers: Mapping[str, ZoneHistogram], fmt: FloatFormat, formats: Sequence[FloatFormat], head: str
) -> Figure:
    """Draw a histogram over exponents for each layer, above strips with the zones of formats.

    layers: name of the layer → its numbers, sorted by the zones of `fmt`
    """
    rows = len(layers)
    shares = {name: percent(histogram.share("lost")) for name, histogram in layers.items()}
    lost = ", ".join(f"{name} {share}" for name, share in shares.items())
    alt = f"{head}: histograms of their sizes, layer by layer; lost in {fmt.name}: {lost}."
    heights = [0.27 * rows, 0.2 * len(formats)]
    figure, (axis, strips) = new_figure(
        7.6, 1.6 + sum(heights), rows=2, sharex=True, height_ratios=heights, alt=alt
    )
    right = axis.get_yaxis_transform()
    for row, (name, histogram) in enumerate(layers.items()):
        _stack(axis, histogram, bottom=float(rows - 1 - row), tall=0.92)
        axis.axhline(rows - 1 - row, color=FAINT, lw=0.4)
        axis.text(1.01, rows - 0.7 - row, shares[name], transform=right, fontsize=8)
    axis.text(1.01, rows + 0.15, "lost", transform=right, fontsize=8, color=FAINT)
    axis.set_yticks([rows - 0.6 - row for row in range(rows)], list(layers), fontsize=8)
    axis.tick_params(axis="x", length=0)
    axis.set_xlim(min(edges(fmt)[0], *map(_lowest, layers.values())) - 2, edges(fmt)[2] + 3)
    axis.set_ylim(0, rows + 0.1)
    _zone_strips(strips, formats)
    figure.legend(handles=_legend(), fontsize=8, frameon=False, ncols=4, loc="outside lower center")
    title(axis, head, f"how many of each size, and what happens to them in {fmt.name}")
    return figure


def running_sums_figure(totals: Mapping[str, Sequence[float]], exact: Sequence[float]) -> Figure:
    """Draw totals as they grow: name → the total after each addition, next to the exact ones."""
    ends = "; ".join(f"{name} at {values[-1]:,.0f}" for name, values in totals.items())
    alt = (
        f"Running totals of {len(exact):,} additions; the exact one ends at {exact[-1]:,.0f}; "
        f"{ends}."
    )
    figure, axis = new_figure(7.2, 3.0, alt=alt)
    axis.plot(range(1, len(exact) + 1), exact, label="exact", **_EXACT)
    for (name, values), (colour, style) in zip(totals.items(), _TOTALS, strict=False):
        axis.plot(range(1, len(values) + 1), values, color=colour, ls=style, lw=1.6, label=name)
        end = f"{values[-1]:,.0f}"
        axis.text(len(values) * 1.01, values[-1], end, color=colour, fontsize=8, va="center")
    axis.set_xlim(0, 1.1 * len(exact))
    _finish(axis, "numbers added", "Totals that stand still", "the running total of ones")
    return figure


def sum_errors_figure(sizes: Sequence[int], errors: Mapping[str, Sequence[float]]) -> Figure:
    """Draw relative errors against the number of terms: name → an error for each size."""
    ends = "; ".join(f"{name} {values[-1]:.1g}" for name, values in errors.items())
    alt = f"Relative error of a sum against the number of terms; at {sizes[-1]:,} terms: {ends}."
    figure, axis = new_figure(7.2, 3.2, alt=alt)
    for (name, values), (colour, style) in zip(errors.items(), _WAYS, strict=False):
        shown = [value or math.nan for value in values]  # a log scale has no 0
        axis.plot(sizes, shown, color=colour, ls=style, lw=1.6, marker="o", ms=3, label=name)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    _finish(axis, "numbers added", "Four ways to add", "relative error of the sum, log scale")
    return figure


def updates_figure(weights: Mapping[str, Sequence[float]], exact: Sequence[float]) -> Figure:
    """Draw a weight after each update: name → its values, next to those of exact arithmetic."""
    ends = "; ".join(f"{name} at {values[-1]:.4g}" for name, values in weights.items())
    alt = f"A weight over {len(exact)} updates; exact arithmetic ends at {exact[-1]:.4g}; {ends}."
    figure, axis = new_figure(7.2, 3.0, alt=alt)
    axis.plot(range(len(exact)), exact, label="exact", **_EXACT)
    for (name, values), (colour, style) in zip(weights.items(), _PATHS, strict=False):
        look = {"color": colour, "ls": style, "lw": 1.6, "label": name}
        axis.step(range(len(values)), values, where="post", **look)
    axis.ticklabel_format(axis="y", useOffset=False)
    _finish(axis, "updates", "A weight that cannot move", "the weight after each update")
    return figure


def _finish(axis: Any, x: str, head: str, under: str) -> None:
    axis.set_xlabel(x, fontsize=8)
    axis.legend(fontsize=8, frameon=False, loc="upper left")
    title(axis, head, under)


def _lowest(histogram: ZoneHistogram) -> int:
    """Return the lowest exponent whose bar is visible."""
    least = _VISIBLE * max(histogram.heights, default=0)
    bars = zip(histogram.exponents, histogram.heights, strict=True)
    return min((exponent for exponent, height in bars if height >= least), default=0)


def _stack(axis: Any, histogram: ZoneHistogram, bottom: float, tall: float) -> None:
    unit = tall / max([*histogram.heights, 1])
    base = [bottom] * len(histogram.exponents)
    for zone in ZONES:
        sizes = [count * unit for count in histogram.counts[zone]]
        look = {"width": 1, "align": "edge", "lw": 0.4, **_look(zone)}
        axis.bar(histogram.exponents, sizes, bottom=base, **look)
        base = [under + size for under, size in zip(base, sizes, strict=True)]


def _zone_strips(axis: Any, formats: Sequence[FloatFormat]) -> None:
    """Draw a strip for each format, cut where its zones begin, over exponents in set limits."""
    left, right = axis.get_xlim()
    for row, fmt in enumerate(reversed(formats)):
        ends = [left, *(min(max(edge, left), right) for edge in edges(fmt)), right]
        for zone, (start, stop) in zip(ZONES, pairwise(ends), strict=True):
            axis.barh(row, stop - start, left=start, height=0.8, lw=0, **_look(zone))
    axis.set_yticks(range(len(formats)), [fmt.name for fmt in reversed(formats)], fontsize=8)
    axis.xaxis.set_major_locator(MaxNLocator(nbins=10, steps=[1, 2, 4, 8], integer=True))
    axis.xaxis.set_major_formatter(lambda exponent, _: rf"$\mathdefault{{2^{{{exponent:.0f}}}}}$")
    axis.set_xlabel("size of the number", fontsize=8)


def _look(zone: str) -> dict[str, Any]:
    colour, hatch = ZONE_STYLES[zone]
    return {"facecolor": colour, "hatch": hatch, "edgecolor": "white"}


def _legend() -> list[Patch]:
    return [Patch(label=zone, **_look(zone)) for zone in ZONE_STYLES]
