"""Draw what `ScaleExplorer` shows, as HTML: the scaled gradients, a verdict, all loss scales."""

from __future__ import annotations

from collections.abc import Mapping

from amp_course.bits.formats import FloatFormat
from amp_course.bits.numerals import raised
from amp_course.kit.markup import percent
from amp_course.kit.panel_parts import status
from amp_course.kit.svg import FAINT, GRID, INK, line, picture, text
from amp_course.scaler.window import SPARE, Sweep, Window
from amp_course.underflow.panel_html import range_view, zone_column
from amp_course.underflow.zones import ZONES, ZoneHistogram

_WIDTH, _LEFT, _RIGHT = 660, 16, 644
_TOP, _FLOOR, _HEIGHT = 40, 130, 180


def scale_view(
    histogram: ZoneHistogram, fmt: FloatFormat, exponent: int, sweep: Sweep, window: Window | None
) -> str:
    """Return the panel's HTML for a loss scale of 2^exponent."""
    said = status(verdict(sweep[exponent], exponent, window), "margin:8px 0 2px")
    return range_view(histogram, fmt) + said + _sweep_picture(sweep, exponent, window)


def verdict(shares: Mapping[str, float], exponent: int, window: Window | None) -> str:
    """Say in a sentence what a scale does: "2¹⁶ = 65,536 is useful: …"."""
    size = f"{2**exponent:,}" if exponent >= 0 else f"1/{2**-exponent:,}"
    lost, overflow = percent(shares["lost"]), percent(shares["overflow"])
    if shares["overflow"]:
        word = "too large"
        why = f"{overflow} of the gradients overflow, and one is enough to skip a step"
    elif shares["lost"] > SPARE:
        word, why = "too small", f"{lost} of the gradients become 0"
    else:
        word, why = "useful", f"{lost} of the gradients are lost, and none overflow"
    others = "No scale from 2⁻¹⁰ to 2⁴⁰ is useful."
    if window:
        others = f"Useful scales: 2{raised(window.lowest)} to 2{raised(window.highest)}."
    return f"A loss scale of 2{raised(exponent)} = {size} is <b>{word}</b>: {why}. {others}"


def _sweep_picture(sweep: Sweep, exponent: int, window: Window | None) -> str:
    wide = (_RIGHT - _LEFT) / len(sweep)
    left = {e: _LEFT + n * wide for n, e in enumerate(sweep)}
    parts, ticks = [], [line(_LEFT, _FLOOR, _RIGHT, _FLOOR, stroke=INK)]
    for e, shares in sweep.items():
        # a share that decides, such as one overflow in a million, is drawn thick enough to see
        zones = (
            (
                zone,
                max(shares[zone] * (_FLOOR - _TOP), 2.0 if zone in ("lost", "overflow") else 0),
                f"2{raised(e)}: {percent(shares[zone])} {zone}",
            )
            for zone in ZONES
            if shares[zone]
        )
        parts += zone_column(left[e], _FLOOR, wide - 1, zones)
        if e % 10 == 0:
            middle = left[e] + wide / 2
            ticks.append(line(middle, _FLOOR, middle, _FLOOR + 5, stroke=GRID))
            ticks.append(text(middle, _FLOOR + 19, f"2{raised(e)}", anchor="middle"))
    parts += ticks
    parts.append(text((_LEFT + _RIGHT) / 2, _FLOOR + 40, "loss scale", anchor="middle", fill=FAINT))
    useful = "no useful scale"
    if window:
        useful = f"useful: 2^{window.lowest} to 2^{window.highest}"
        start, end = left[window.lowest], left[window.highest] + wide - 1
        parts.append(line(start, _TOP - 8, end, _TOP - 8, stroke=INK, width=2))
        parts += [line(x, _TOP - 12, x, _TOP - 4, stroke=INK, width=2) for x in (start, end)]
        parts.append(text((start + end) / 2, _TOP - 18, "useful", anchor="middle"))
    here = left[exponent] + wide / 2
    parts.append(line(here, _TOP - 14, here, _FLOOR + 8, stroke=INK, width=3))
    now = ", ".join(f"{zone} {percent(share)}" for zone, share in sweep[exponent].items())
    label = f"shares at every loss scale; now at 2^{exponent}; {useful}; here {now}"
    return picture(_WIDTH, _HEIGHT, *parts, label=label)
