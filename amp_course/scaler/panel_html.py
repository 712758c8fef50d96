"""Draw what `ScaleExplorer` shows, as HTML: the shares in words, the scaled gradients,
and every loss scale side by side.
"""

from __future__ import annotations

from collections.abc import Mapping

from amp_course.bits.formats import FloatFormat
from amp_course.bits.numerals import raised
from amp_course.kit.colours import ZONES as LOOKS
from amp_course.kit.markup import percent
from amp_course.kit.svg import FAINT, GRID, INK, box, line, picture, text
from amp_course.scaler.window import SPARE, Sweep, Window
from amp_course.underflow.panel_html import range_view
from amp_course.underflow.zones import ZONES, ZoneHistogram

_WIDTH, _LEFT, _RIGHT = 660, 16, 644
_TOP, _FLOOR, _HEIGHT = 40, 130, 180


def scale_view(
    histogram: ZoneHistogram, fmt: FloatFormat, exponent: int, sweep: Sweep, window: Window | None
) -> str:
    """Return the panel's HTML for a loss scale of 2^exponent."""
    return (
        range_view(histogram, fmt) + f'<div role="status" aria-live="polite" style="margin:8px 0 '
        f'2px">{verdict(sweep[exponent], exponent, window)}</div>'
        + _sweep_picture(sweep, exponent, window)
    )


def verdict(shares: Mapping[str, float], exponent: int, window: Window | None) -> str:
    """Say in a sentence what a scale does: "2¹⁶ = 65,536 is useful: …"."""
    size = f"{2**exponent:,}" if exponent >= 0 else f"1/{2**-exponent:,}"
    said = f"A loss scale of 2{raised(exponent)} = {size} "
    lost, overflow = percent(shares["lost"]), percent(shares["overflow"])
    if shares["overflow"]:
        said += f"is <b>too large</b>: {overflow} of the gradients overflow, and one is enough to "
        said += "skip a step"
    elif shares["lost"] > SPARE:
        said += f"is <b>too small</b>: {lost} of the gradients become 0"
    else:
        said += f"is <b>useful</b>: {lost} of the gradients are lost, and none overflow"
    if window is None:
        return f"{said}. No scale from 2⁻¹⁰ to 2⁴⁰ is useful."
    low, high = (f"2{raised(end)}" for end in (window.lowest, window.highest))
    return f"{said}. Useful scales: {low} to {high}."


def _sweep_picture(sweep: Sweep, exponent: int, window: Window | None) -> str:
    wide = (_RIGHT - _LEFT) / len(sweep)
    left = {e: _LEFT + n * wide for n, e in enumerate(sweep)}
    parts = [
        column for e, shares in sweep.items() for column in _column(left[e], wide - 1, e, shares)
    ]
    parts.append(line(_LEFT, _FLOOR, _RIGHT, _FLOOR, stroke=INK))
    for e in sweep:
        if e % 10 == 0:
            middle = left[e] + wide / 2
            parts.append(line(middle, _FLOOR, middle, _FLOOR + 5, stroke=GRID))
            parts.append(text(middle, _FLOOR + 19, f"2{raised(e)}", anchor="middle"))
    parts.append(text((_LEFT + _RIGHT) / 2, _FLOOR + 40, "loss scale", anchor="middle", fill=FAINT))
    if window:
        start, end = left[window.lowest], left[window.highest] + wide - 1
        parts += [line(start, _TOP - 8, end, _TOP - 8, stroke=INK, width=2)]
        parts += [line(x, _TOP - 12, x, _TOP - 4, stroke=INK, width=2) for x in (start, end)]
        parts.append(text((start + end) / 2, _TOP - 18, "useful", anchor="middle"))
    here = left[exponent] + wide / 2
    parts.append(line(here, _TOP - 14, here, _FLOOR + 8, stroke=INK, width=3))
    useful = f"useful: 2^{window.lowest} to 2^{window.highest}" if window else "no useful scale"
    now = ", ".join(f"{zone} {percent(share)}" for zone, share in sweep[exponent].items())
    label = f"shares at every loss scale; now at 2^{exponent}; {useful}; here {now}"
    return picture(_WIDTH, _HEIGHT, *parts, label=label)


def _column(x: float, width: float, exponent: int, shares: Mapping[str, float]) -> list[str]:
    parts, base = [], float(_FLOOR)
    for zone in ZONES:
        height = shares[zone] * (_FLOOR - _TOP)
        if shares[zone]:
            colour, hatch = LOOKS[zone]
            # So that a share that decides, such as one overflow in a million, is never too thin to
            # be seen.
            height = max(height, 2.0) if zone in ("lost", "overflow") else height
            tip = f"2{raised(exponent)}: {percent(shares[zone])} {zone}"
            parts.append(box(x, base - height, width, height, colour, hatch=hatch, tip=tip))
        base -= height
    return parts
