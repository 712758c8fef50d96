"""The figures of chapter 05. They take numbers that were computed, and compute nothing."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from amp_course.bits.formats import FloatFormat
from amp_course.bits.numerals import raised
from amp_course.kit.style import INK, new_figure, title
from amp_course.kit.style import ZONES as LOOKS
from amp_course.scaler.window import Window
from amp_course.underflow.views import percent
from amp_course.underflow.zones import ZONES, ZoneHistogram


def scale_figure(
    histogram: ZoneHistogram,
    fmt: FloatFormat,
    exponent: int,
    sweep: Mapping[int, Mapping[str, float]],
    window: Window | None,
) -> Figure:
    """Draw the gradients scaled by 2^exponent by zone, above the shares at every loss scale, with the useful ones marked."""
    figure, (above, below) = new_figure(7.6, 4.6, rows=2, height_ratios=[1.5, 1])
    _columns(above, dict(zip(histogram.exponents, _rows(histogram), strict=True)))
    above.set_yticks([])
    above.set_xlabel("size of a gradient after scaling, power of two", fontsize=8)
    title(above, f"Gradients times 2{raised(exponent)} in {fmt.name}", "how many of each size, by what becomes of them")
    _columns(below, sweep)
    below.set_ylim(0, 1.25)
    below.set_yticks([0, 0.5, 1], ["0", "50 %", "100 %"])
    below.set_xlabel("loss scale, power of two", fontsize=8)
    below.axvline(exponent, color=INK, lw=1.6)
    if window:
        below.plot([window.lowest - 0.5, window.highest + 0.5], [1.1, 1.1], color=INK, lw=2, marker="|")
        below.text((window.lowest + window.highest) / 2, 1.14, "useful", ha="center", va="bottom", fontsize=8)
    handles = [
        Patch(facecolor=LOOKS[zone][0], hatch=LOOKS[zone][1] * 2, edgecolor="white", label=f"{zone} {percent(share)}")
        for zone, share in sweep[exponent].items()
    ]
    figure.legend(handles=handles, fontsize=8, frameon=False, ncols=4, loc="outside lower center")
    return figure


def _rows(histogram: ZoneHistogram) -> list[dict[str, float]]:
    return [{zone: histogram.counts[zone][n] for zone in ZONES} for n in range(len(histogram.exponents))]


def _columns(axis: object, columns: Mapping[int, Mapping[str, float]]) -> None:
    """Stack the zones of each exponent."""
    places, base = list(columns), [0.0] * len(columns)
    for zone in ZONES:
        heights = [column[zone] for column in columns.values()]
        colour, hatch = LOOKS[zone]
        axis.bar(places, heights, 0.9, base, color=colour, hatch=hatch * 2, edgecolor="white", lw=0)  # type: ignore[attr-defined]
        base = [low + height for low, height in zip(base, heights, strict=True)]
