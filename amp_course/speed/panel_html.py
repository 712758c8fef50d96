"""The HTML of `RooflineExplorer`: the verdict, the roofline with the op on it, and a table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from amp_course.kit.colours import FORMAT_COLOURS, FORMAT_LINES
from amp_course.kit.measure import seconds_text
from amp_course.kit.memory import bytes_text
from amp_course.kit.panel_parts import cells, scrolling, status, table, view
from amp_course.kit.svg import FAINT, GRID, line, picture, polyline, text
from amp_course.speed.one_op import Predicted
from amp_course.speed.roof_labels import (
    LEAST,
    MOST,
    STRIP_END,
    in_strip,
    rate_text,
    roof_label,
    roof_words,
    same_height,
)
from amp_course.speed.roofline import Roofline

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _FLOOR = 700, 330, 84, 692, 12, 286
_CIRCLE, _DIAMOND = "M-6,0 a6,6 0 1,0 12,0 a6,6 0 1,0 -12,0", "M0,-8 L8,0 L0,8 L-8,0 Z"
_SHAPES = (_CIRCLE, _DIAMOND)  # of the sides
_CELL = "text-align:left;padding:2px 12px 2px 0;vertical-align:top;white-space:nowrap"
_WHY = {
    "launch": "starting a kernel takes longer than running it",
    "memory": "moving its bytes takes longer than computing",
    "compute": "its matmuls run at the peak rate",
}


def op_view(roofline: Roofline, sides: Sequence[Predicted]) -> str:
    """Return the panel's HTML; sides: fp32, and AMP if a 16-bit dtype is chosen."""
    said = status(verdict(roofline, sides), "margin-bottom:6px")
    return view(said, _roofline_picture(roofline, sides), _table(sides))


def verdict(roofline: Roofline, sides: Sequence[Predicted]) -> str:
    """Say what bounds the op, how long it takes, what AMP makes of it, and what was measured."""
    chosen, fp32 = sides[-1], sides[0]
    if not chosen.calls:
        return (
            "An fp32 tensor needs no cast to fp32: there is nothing to run. Choose a 16-bit dtype."
        )
    mostly = "" if chosen.seconds_by[chosen.bound] > 0.95 * chosen.seconds else "mostly "
    words = (
        f"{chosen.name} is {mostly}<b>{chosen.bound}-bound</b> on {escape(roofline.name)}: "
        f"{_WHY[chosen.bound]}. Predicted: {seconds_text(chosen.seconds)}"
    )
    if chosen is fp32:
        words += ". Choose a 16-bit dtype to see what AMP makes of it."
    else:
        words += f", {_compared(fp32.seconds, chosen.seconds)}."
        count = sum(call.kind == "cast" for call in chosen.calls)
        if count and fp32.calls and chosen.cast_seconds > 0.01 * chosen.seconds:
            casts = "Its cast takes" if count == 1 else f"Its {count} casts take"
            words += f" {casts} {100 * chosen.cast_seconds / chosen.seconds:.0f} % of that."
    if chosen.measured:
        words += f" <b>Measured: {seconds_text(chosen.measured)}</b>"
        if fp32.measured and chosen is not fp32:
            words += f", {_compared(fp32.measured, chosen.measured)}"
        words += f". {_explain_measured(chosen)}"
    return words


def _compared(fp32: float, amp: float) -> str:
    if not fp32:
        return "which fp32 does not have to pay"
    if abs(fp32 / amp - 1) < 0.01:
        return f"about the same as fp32 ({seconds_text(fp32)})"
    times, word = (fp32 / amp, "fast") if fp32 > amp else (amp / fp32, "long")
    return (
        f"<b>{times:.{2 if times < 1.95 else 1 if times < 99.5 else 0}f} times as {word}</b> "
        f"as fp32 ({seconds_text(fp32)})"
    )


def _explain_measured(side: Predicted) -> str:
    ratio = (side.measured or 0.0) / side.seconds
    if ratio < 0.8 and side.bound == "compute":
        return "That is faster than the square matmuls that the roof was measured with."
    if ratio < 0.8:
        return (
            "That is faster than the roof allows: its data was in a cache, which a roofline "
            "leaves out."
        )
    if ratio < 1.5:
        return "The prediction is close."
    return (
        f"That is {ratio:.1f} times the prediction: a roofline is the best case, and this op at "
        f"this size falls short of it."
    )


def _roofline_picture(roofline: Roofline, sides: Sequence[Predicted]) -> str:
    top = math.log10(4 * max(roofline.peak_flops.values()))
    floor = math.log10(LEAST * roofline.bandwidth / 60)

    def across(intensity: float) -> float:
        return _LEFT + (_RIGHT - _LEFT) * math.log(intensity / LEAST) / math.log(MOST / LEAST)

    def down(rate: float) -> float:
        return _FLOOR - (_FLOOR - _TOP) * (max(math.log10(rate), floor) - floor) / (top - floor)

    strip = across(STRIP_END)
    parts = [
        f'<rect x="{_LEFT}" y="{_TOP}" width="{strip - _LEFT:.1f}" height="{_FLOOR - _TOP}" '
        f'fill="{GRID}" opacity="0.35"/>'
    ]
    parts += [
        text(_LEFT + 4, _TOP + 13 * (number + 1), words, size=10, fill=FAINT)
        for number, words in enumerate(("no FLOPs counted:", "the slope is the", "memory's speed"))
    ]
    for power in range(math.ceil(floor), math.floor(top) + 1):
        parts.append(line(_LEFT, down(10**power), _RIGHT, down(10**power), stroke=GRID, width=0.5))
        label = rate_text(10.0**power).replace(".00 ", " ").replace(".0 ", " ")
        parts.append(text(_LEFT - 6, down(10**power) + 4, label, size=11, anchor="end", fill=FAINT))
    for power in range(-2, 15, 2):
        x, label = across(2.0**power), "¼" if power < 0 else f"{2**power:,}"
        parts += [
            line(x, _FLOOR, x, _FLOOR + 4),
            text(x, _FLOOR + 17, label, size=11, anchor="middle", fill=FAINT),
        ]
    parts.append(line(_LEFT, _FLOOR, _RIGHT, _FLOOR))
    parts.append(
        text((_LEFT + _RIGHT) / 2, _HEIGHT - 8, "FLOPs per byte moved", anchor="middle", fill=FAINT)
    )
    for names in same_height(roofline):
        fmt, ridge = names[0], max(roofline.ridge(names[0]), LEAST)
        roof = [(across(x), down(roofline.attainable(x, fmt))) for x in (LEAST, ridge, MOST)]
        dash = "6 4" if FORMAT_LINES[fmt] == "--" else ""
        parts.append(polyline(roof, stroke=FORMAT_COLOURS[fmt], width=2, dash=dash))
        parts.append(
            text(_RIGHT, roof[-1][1] - 4, roof_label(roofline, names), size=11, anchor="end")
        )
    ridge = max(roofline.ridge(sides[-1].fmt), LEAST)
    x, y = across(ridge), down(roofline.peak_flops[sides[-1].fmt])
    parts.append(line(x, y, x, _FLOOR, dash="2 3"))
    parts.append(text(x + 4, _FLOOR - 6, f"ridge: {ridge:.3g}", size=11, fill=FAINT))
    for side, shape, place in zip(sides, _SHAPES, (0.3, 0.7), strict=False):
        for seconds, what in ((side.seconds, "predicted"), (side.measured, "measured")):
            if seconds and side.calls:
                intensity = side.intensity or in_strip(place)
                rate = side.flops / seconds or intensity * side.bytes / seconds
                moved = f"{bytes_text(side.bytes / seconds)} per second"
                pace = rate_text(rate) if side.flops else moved
                tip = f"{side.name}, {what}: {seconds_text(seconds)}, {pace}"
                parts.append(
                    _mark(shape, across(intensity), down(rate), side.fmt, what == "measured", tip)
                )
    return picture(_WIDTH, _HEIGHT, *parts, label=roof_words(roofline, sides))


def _mark(shape: str, x: float, y: float, fmt: str, hollow: bool, tip: str = "") -> str:
    fill = "none" if hollow else FORMAT_COLOURS[fmt]
    edge = FORMAT_COLOURS[fmt] if hollow else "white"
    title = f"<title>{escape(tip)}</title>" if tip else ""
    # larger, so that it is a ring around the mark of a prediction that came true
    scale = 1.35 if hollow and tip else 1
    at = (
        f'transform="translate({x:.1f},{y:.1f}) scale({scale})" stroke-width="{2 if hollow else 1}"'
    )
    return f'<path d="{shape}" {at} fill="{fill}" stroke="{edge}">{title}</path>'


def _table(sides: Sequence[Predicted]) -> str:
    heads = "predicted, measured, of it casts, bound by, kernels, FLOPs, bytes, FLOPs per byte"
    rows = map(_row, sides, _SHAPES)
    style = f"{_CELL};white-space:normal"
    # on a narrow page the table scrolls, and does not widen what is above it
    return scrolling(
        table("the op in numbers", ("", *heads.split(", ")), rows, style),
        ";width:0;min-width:100%",
    )


def _row(side: Predicted, shape: str) -> str:
    def symbol(hollow: bool) -> str:
        mark = _mark(shape, 9, 9, side.fmt, hollow)
        style = 'width="18" height="18" style="vertical-align:-4px"'
        return f'<svg {style} aria-hidden="true">{mark}</svg>'

    contents = [
        f"{symbol(False)} {side.name}",
        seconds_text(side.seconds) if side.calls else "–",
        f"{symbol(True)} {seconds_text(side.measured)}" if side.measured else "–",
        seconds_text(side.cast_seconds) if side.cast_seconds else "–",
        side.bound if side.calls else "–",
        str(len(side.calls)),
        rate_text(side.flops).removesuffix("OP/s").removesuffix("FL"),
        bytes_text(side.bytes),
        f"{side.intensity:.3g}" if side.flops else "–",
    ]
    return cells(contents, _CELL)
