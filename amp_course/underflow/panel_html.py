"""Draw what `RangeExplorer` shows, as HTML: percentages in words,
and a histogram over exponents as SVG.
"""

from __future__ import annotations

from collections import Counter
from itertools import compress
from typing import NamedTuple

from amp_course.bits.formats import FloatFormat
from amp_course.bits.numerals import raised
from amp_course.kit.colours import ZONES as ZONE_STYLES
from amp_course.kit.markup import percent
from amp_course.kit.svg import FAINT, GRID, INK, box, line, picture, swatch, text
from amp_course.underflow.zones import ZONES, ZoneHistogram, edges

_WIDTH, _LEFT, _RIGHT = 660, 16, 644
_TOP, _FLOOR, _HEIGHT = 26, 236, 308
_NARROW = (-48, 24)  # the exponents that the picture shows at least


def range_view(histogram: ZoneHistogram, fmt: FloatFormat) -> str:
    """Return the panel's HTML: one swatch with its percentage for each zone,
    and the histogram under it.
    """
    return f"{shares_line(histogram)}{_picture(histogram, fmt)}"


def shares_line(histogram: ZoneHistogram) -> str:
    """Return the zones with their percentages: "lost 12.3 % · subnormal …",
    each behind its swatch.
    """
    shares = "".join(
        f'<span style="margin-right:2em;white-space:nowrap">{swatch(*ZONE_STYLES[zone])} {zone} '
        f"<b>{percent(histogram.share(zone))}</b></span>"
        for zone in ZONES
    )
    return f'<div role="status" aria-live="polite" style="margin:2px 0 6px">{shares}</div>'


class _Axis(NamedTuple):
    """The exponents that the picture shows, from `low` up to `high`."""

    low: int
    high: int

    @property
    def wide(self) -> float:
        """The width of one exponent, in pixels."""
        return (_RIGHT - _LEFT) / (self.high - self.low)

    def x(self, exponent: float) -> float:
        """Return the position of an exponent, clamped to the picture."""
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
    """Say where the numbers are and what becomes of them,
    for a reader who cannot see the picture.
    """
    shares = ", ".join(f"{zone} {percent(histogram.share(zone))}" for zone in ZONES)
    heights = histogram.heights
    filled = list(compress(histogram.exponents, heights))
    if not filled:
        return f"histogram over exponents: {shares}"
    peak = histogram.exponents[heights.index(max(heights))]
    where = f"from 2^{filled[0]} to 2^{filled[-1] + 1}, most from 2^{peak} to 2^{peak + 1}"
    return f"histogram over exponents {where}: {shares}"


def _bars(histogram: ZoneHistogram, axis: _Axis) -> list[str]:
    """Stack each exponent's zones; anything outside the picture is counted in the first or last
    bar.
    """
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
        base = float(_FLOOR)
        for zone, count in column.items():
            height = count / tallest * (_FLOOR - _TOP)
            base -= height
            colour, hatch = ZONE_STYLES[zone]
            tip = f"2{raised(exponent)} to 2{raised(exponent + 1)}: {count:,} {zone}"
            parts.append(box(axis.x(exponent), base, width, height, colour, hatch=hatch, tip=tip))
    return parts


def _strip(limits: tuple[float, float, float], axis: _Axis) -> list[str]:
    """Draw where the zones lie: a strip under the histogram, names above it,
    and a line up from each edge.
    """
    cuts = [axis.x(limit) for limit in limits]
    parts = []
    for zone, left, right in zip(ZONES, [_LEFT, *cuts], [*cuts, _RIGHT], strict=True):
        colour, hatch = ZONE_STYLES[zone]
        parts.append(box(left, _FLOOR + 4, right - left, 10, colour, hatch=hatch, tip=zone))
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
    middle = (_LEFT + _RIGHT) / 2
    return [
        *parts,
        text(middle, _FLOOR + 58, "size of the number, after scaling", anchor="middle", fill=FAINT),
    ]
