"""Draw what `RangeExplorer` shows, as HTML: percentages, and a histogram over exponents as SVG."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import compress
from typing import NamedTuple

from amp_course.bits.formats import FloatFormat
from amp_course.bits.numerals import raised
from amp_course.kit.colours import ZONES as ZONE_STYLES
from amp_course.kit.markup import percent
from amp_course.kit.panel_parts import in_row, status
from amp_course.kit.svg import FAINT, GRID, INK, box, line, picture, swatch, text
from amp_course.underflow.zones import ZONES, ZoneHistogram, edges

_WIDTH, _LEFT, _RIGHT = 660, 16, 644
_TOP, _FLOOR, _HEIGHT = 26, 236, 308
_NARROW = (-48, 24)  # the exponents that the picture shows at least


def range_view(histogram: ZoneHistogram, fmt: FloatFormat) -> str:
    """Return the panel's HTML: each zone's swatch and percentage, above the histogram."""
    shares = (
        f"{swatch(*ZONE_STYLES[zone])} {zone} <b>{percent(histogram.share(zone))}</b>"
        for zone in ZONES
    )
    return status(in_row(shares, "2em"), "margin:2px 0 6px") + _picture(histogram, fmt)


def zone_column(
    x: float, floor: float, width: float, zones: Iterable[tuple[str, float, str]]
) -> list[str]:
    """Stack a box for each (zone, height, tip), from the floor up."""
    parts = []
    for zone, height, tip in zones:
        floor -= height
        colour, hatch = ZONE_STYLES[zone]
        parts.append(box(x, floor, width, height, colour, hatch=hatch, tip=tip))
    return parts


class _Axis(NamedTuple):
    """The exponents that the picture shows, from `low` up to `high`."""

    low: int
    high: int

    @property
    def wide(self) -> float:
        """The width of one exponent, in pixels."""
        return (_RIGHT - _LEFT) / (self.high - self.low)

    def x(self, exponent: float) -> float:
        """Return an exponent's position, clamped to the picture."""
        return _LEFT + (min(max(exponent, self.low), self.high) - self.low) * self.wide


def _picture(histogram: ZoneHistogram, fmt: FloatFormat) -> str:
    limits = edges(fmt)
    axis = _Axis(min(_NARROW[0], int(limits[0]) - 12), max(_NARROW[1], int(limits[2]) + 12))
    return picture(
        _WIDTH,
        _HEIGHT,
        *_bars(histogram, axis),
        line(_LEFT, _FLOOR, _RIGHT, _FLOOR, stroke=INK),
        *_strip(limits, axis),
        *_ticks(axis),
        label=_label(histogram),
    )


def _label(histogram: ZoneHistogram) -> str:
    """Return the alt text: where the numbers are, and what becomes of them."""
    shares = ", ".join(f"{zone} {percent(histogram.share(zone))}" for zone in ZONES)
    heights = histogram.heights
    filled = list(compress(histogram.exponents, heights))
    if not filled:
        return f"histogram over exponents: {shares}"
    peak = histogram.exponents[heights.index(max(heights))]
    where = f"from 2^{filled[0]} to 2^{filled[-1] + 1}, most from 2^{peak} to 2^{peak + 1}"
    return f"histogram over exponents {where}: {shares}"


def _bars(histogram: ZoneHistogram, axis: _Axis) -> list[str]:
    """Stack each exponent's zones; the first and last bar include what is outside the picture."""
    columns: dict[int, Counter[str]] = {}
    for zone in ZONES:
        for exponent, count in zip(histogram.exponents, histogram.counts[zone], strict=True):
            if count:
                shown = min(max(exponent, axis.low), axis.high - 1)
                columns.setdefault(shown, Counter())[zone] += count
    tallest = max((column.total() for column in columns.values()), default=1)
    width = max(1.0, axis.wide - (1 if axis.wide > 4 else 0))
    parts = []
    for exponent, column in columns.items():
        where = f"2{raised(exponent)} to 2{raised(exponent + 1)}"
        zones = (
            (zone, count / tallest * (_FLOOR - _TOP), f"{where}: {count:,} {zone}")
            for zone, count in column.items()
        )
        parts += zone_column(axis.x(exponent), _FLOOR, width, zones)
    return parts


def _strip(limits: tuple[float, float, float], axis: _Axis) -> list[str]:
    """Draw the zones as a strip under the histogram, their names above, a line at each edge."""
    cuts = [axis.x(limit) for limit in limits]
    parts = []
    for zone, left, right in zip(ZONES, [_LEFT, *cuts], [*cuts, _RIGHT], strict=True):
        parts += zone_column(left, _FLOOR + 14, right - left, [(zone, 10, zone)])
        if right - left > 8 * len(zone):  # else the name would run into the next
            parts.append(text((left + right) / 2, _TOP - 12, zone, anchor="middle", fill=FAINT))
    return parts + [line(cut, _TOP - 6, cut, _FLOOR + 14, dash="4 3") for cut in cuts]


def _ticks(axis: _Axis) -> list[str]:
    step = next(step for step in (8, 32, 256) if (axis.high - axis.low) / step <= 12)
    parts = []
    for exponent in range(-(-axis.low // step) * step, axis.high + 1, step):
        at = axis.x(exponent)
        parts.append(line(at, _FLOOR + 14, at, _FLOOR + 19, stroke=GRID))
        parts.append(text(at, _FLOOR + 34, f"2{raised(exponent)}", anchor="middle"))
    middle, caption = (_LEFT + _RIGHT) / 2, "size of the number, after scaling"
    return [*parts, text(middle, _FLOOR + 58, caption, anchor="middle", fill=FAINT)]
