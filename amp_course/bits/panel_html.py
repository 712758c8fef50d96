"""Write what `BitExplorer` shows of a pattern and an exact number, as HTML and SVG.

The bits themselves are the panel's buttons; all styling is in `panel_css.py`.
"""

from __future__ import annotations

import math
from fractions import Fraction
from html import escape

from amp_course.bits.formats import FORMATS, FloatFormat
from amp_course.bits.nearest import Exact, Nearest, exact_value, is_finite, is_nan, nearest
from amp_course.bits.numerals import (
    DIGITS,
    decimal_text,
    full_text,
    number_text,
    short_text,
    signed,
)
from amp_course.bits.panel_css import TINT
from amp_course.bits.parse import hex_text
from amp_course.bits.scalar import kind, neighbours, split, ulp
from amp_course.kit import svg
from amp_course.kit.colours import FIELDS, FORMAT_COLOURS

_ULP = '<abbr title="unit in the last place: the gap to the next number">ulp</abbr>'
_SHOWN_BITS = 19  # longer significands are not written out a second time
_LINE_WIDTH, _LINE_HEIGHT = 560, 100  # pixels
_SPREAD = 195  # pixels from the value to the farther neighbour
# the outcomes of rounding that the table names
_WORDS = {"exact": "exact", "zero": "lost", "none": "no NaN"}
_WORDS |= dict.fromkeys(("infinity", "largest"), "overflow")
_FORMULA = "(−1)<sup>s</sup> · 2<sup>e − bias</sup> · 1.m"


def explorer_view(pattern: int, fmt: FloatFormat, exact: Exact) -> str:
    """Return all that is below the bits: the value, its formula and neighbours, all formats."""
    return (
        f'<div class="amp-bits-view">{headline(pattern, fmt)}'
        f'<div class="amp-reading">{formula(pattern, fmt)}{number_line(pattern, fmt, exact)}</div>'
        f"<p>{reading(pattern, fmt)}</p>{table(exact, fmt)}</div>"
    )


def headline(pattern: int, fmt: FloatFormat) -> str:
    """Return the value in large type with its class, hex pattern, ulp and, if cut, full decimal."""
    value = exact_value(pattern, fmt)
    number = number_text(value)
    facts = {"class": kind(pattern, fmt), "hex": f"<code>{hex_text(pattern, fmt)}</code>"}
    if is_finite(value):
        facts[_ULP] = number_text(Fraction(ulp(float(value), fmt)), 5)
        if (full := full_text(value)) not in number:
            facts["in full"] = full
    cells = " ".join(f"<span><i>{name}</i> <b>{text}</b></span>" for name, text in facts.items())
    return f'<div class="amp-facts"><div class="amp-value">{number}</div> {cells}</div>'


def formula(pattern: int, fmt: FloatFormat) -> str:
    """Return a table of the pattern's fields, one column each, from bits to a number."""
    (sign, exponent, significand), width = split(pattern, fmt), fmt.significand_bits
    long = width > _SHOWN_BITS
    stored = f"{width} bits" if long else f"{significand:0{width}b}"
    exponent_read = f"{exponent:0{fmt.exponent_bits}b} = {exponent}"
    significand_read = f"{stored} = {significand}" if width else "–"
    rows = _row("", ["sign s", "exponent e", "significand m"], "th")
    rows += _row("bits", [str(sign), exponent_read, significand_read])
    value = exact_value(pattern, fmt)
    if is_finite(value):
        hidden, field = (1, exponent) if exponent else (0, 1)
        power = f"2<sup>{field} − {signed(fmt.bias)}</sup>"
        over = f"2<sup>{width}</sup>" if long else str(2**width)
        fraction = f"({hidden} + {significand}/{over})" if width else str(hidden)
        rows += _row("formula", [f"(−1)<sup>{sign}</sup>", power, fraction])
        scale = f"2<sup>{signed(field - fmt.bias)}</sup>"
        scaled, is_all = decimal_text(hidden + Fraction(significand, 2**width), DIGITS)
        number = ["−1" if sign else "+1", scale, scaled if is_all else f"≈ {scaled}"]
        end = number_text(value)
        end = end if end.startswith("≈") else f"= {end}"
        rows += _row("number", number, end="" if long else end)  # a long value is shown once, above
    return f"<table class='amp-fields'>{rows}</table>"


def reading(pattern: int, fmt: FloatFormat) -> str:
    """Return the formula in a sentence; for inf and NaN, what makes them so."""
    what = kind(pattern, fmt)
    if what in ("infinity", "NaN"):
        return _special_reason(split(pattern, fmt).significand, fmt)
    if what == "normal":
        bias = signed(fmt.bias)
        return f"value = {_FORMULA}, with a bias of {bias} and a hidden 1 before the point"
    why = "an exponent field of 0 is read as 1, and there is no hidden 1 before the point"
    why += "" if what == "zero" else ", so fewer bits of precision are left"
    return f"value = {_FORMULA.replace('1.m', '0.m')}: {why}"


def number_line(pattern: int, fmt: FloatFormat, exact: Exact) -> str:
    """Draw the value between its neighbours, the interval that rounds to it, the exact number."""
    value = exact_value(pattern, fmt)
    if not is_finite(value):
        return ""
    here, unit = Fraction(value), Fraction(ulp(float(value), fmt))
    below, above = (_exact(number) for number in neighbours(pattern, fmt))
    low = Fraction(below) if is_finite(below) else here - unit
    high = Fraction(above) if is_finite(above) else here + unit
    farthest, y = max(high - here, here - low), 52

    def x(number: Fraction) -> float:
        return _LINE_WIDTH / 2 + _SPREAD * float((number - here) / farthest)

    # in a format without inf, everything beyond its largest number rounds to it
    left = x((low + here) / 2) if not is_nan(below) else 10
    right = x((here + high) / 2) if not is_nan(above) else _LINE_WIDTH - 10
    shade = FIELDS["significand"][0] + TINT
    parts = [svg.box(left, y - 9, right - left, 18, shade), svg.line(10, y, _LINE_WIDTH - 10, y)]
    for tick, end, name in ((x(low), below, "previous"), (x(high), above, "next")):
        if not is_nan(end):
            parts += [
                svg.line(tick, y - 9, tick, y + 9),
                svg.text(tick, y + 27, short_text(end), anchor="middle"),
                svg.text(tick, y + 42, name, anchor="middle", fill=svg.FAINT, size=11),
            ]
    parts += [
        svg.line(x(here), y - 13, x(here), y + 13, stroke=svg.INK, width=2.5),
        svg.text(x(here), y + 28, short_text(value), anchor="middle", size=13, bold=True),
    ]
    legend = ""
    if is_finite(exact) and exact != value:
        name = short_text(exact)
        if low <= exact <= high:
            spot, anchor, arrow = x(Fraction(exact)), "middle", "▼"
            legend = " &nbsp;▼ the exact number"
        else:
            name += ", far off"
            spot, anchor, arrow = 12.0, "start", "◄"
        if exact > high:
            spot, anchor, arrow = _LINE_WIDTH - 12.0, "end", "►"
        parts += [
            svg.text(spot, y - 28, name, anchor=anchor),
            svg.text(spot, y - 13, arrow, anchor=anchor, fill=FIELDS["sign"][0], size=13),
        ]
    label = f"{short_text(value)} between {short_text(below)} and {short_text(above)}"
    picture = svg.picture(_LINE_WIDTH, _LINE_HEIGHT, *parts, label=label)
    caption = f"shaded: everything that {escape(fmt.name)} rounds to {short_text(value)}{legend}"
    return f"<div class='amp-line'>{picture}<p>{caption}</p></div>"


def table(exact: Exact, current: FloatFormat) -> str:
    """Return the table of what every format, and the current one, makes of an exact number."""
    known = {fmt.name: fmt for fmt in (*FORMATS, current)}
    rows = "".join(_format_row(nearest(exact, fmt), fmt is current) for fmt in known.values())
    names = ("format", "bits", f"{number_text(exact)} becomes", "error", "relative error", "")
    heads = "".join(
        f"<th scope='col'{' class=amp-hex' if name == 'bits' else ''}>{name}</th>" for name in names
    )
    body = f"<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody>"
    return f"<table class='amp-formats'>{body}</table>"


def rounding_note(found: Nearest) -> str:
    """Say what became of a number: "2049 is not in fp16: rounded to <b>2048</b>, 1 too small." """
    name, fmt = number_text(found.exact), escape(found.fmt.name)
    value, largest = number_text(found.value), number_text(Fraction(found.fmt.max))
    if found.outcome == "exact":
        return f"{name} is in {fmt} exactly." if is_finite(found.exact) else f"{fmt} has {name}."
    if found.outcome in ("infinity", "largest"):
        sign = "−" if found.exact < 0 else ""
        no_inf = ", and it has no inf" if found.outcome == "largest" else ""
        past = f"{name} is past the largest number of {fmt}, {sign}{largest}{no_inf}"
        return f"{past}: it becomes <b>{value}</b>."
    even = " (halfway between two numbers: the even pattern wins)" if found.tie else ""
    if found.outcome == "zero":
        smallest = short_text(Fraction(found.fmt.smallest_subnormal))
        lost = f"{name} is too close to 0 for {fmt}, whose smallest number is {smallest}"
        return f"{lost}: rounded to <b>{value}</b>{even}."
    error = found.error or Fraction(0)
    size = "too large" if error > 0 else "too small"
    return f"{name} is not in {fmt}: rounded to <b>{value}</b>, {_small(abs(error))} {size}{even}."


def _format_row(found: Nearest, is_current: bool) -> str:
    fmt = found.fmt
    colour = FORMAT_COLOURS.get(fmt.name, svg.FAINT)
    error, relative = found.error, found.relative
    words = [_WORDS[found.outcome]] if found.outcome in _WORDS else []
    pattern = value = "–"
    if found.pattern is not None:
        pattern, value = hex_text(found.pattern, fmt), number_text(found.value)
        words += ["subnormal"] if kind(found.pattern, fmt) == "subnormal" else []
    words += ["tie"] if found.tie else []
    cells = [
        f"<th scope='row'><i style='background:{colour}'></i>"
        f"{'▸ ' if is_current else ''}{escape(fmt.name)}</th>",
        f"<td class='amp-hex'><code>{pattern}</code></td>",
        f"<td>{value}</td>",
        f"<td>{_signed(error)}</td>",
        f"<td>{'0' if error == 0 else '–' if relative is None else _percent(relative)}</td>",
        f"<td>{', '.join(words)}</td>",
    ]
    return f"<tr{' class=amp-current' if is_current else ''}>{''.join(cells)}</tr>"


def _row(name: str, cells: list[str], tag: str = "td", end: str = "") -> str:
    marked = [
        f"<{tag}><span class='amp-{field}'>{cell}</span></{tag}>"
        for field, cell in zip(FIELDS, cells, strict=True)
    ]
    times = "<td>·</td>" if name in ("formula", "number") else "<td></td>"
    return f"<tr><th scope='row'>{name}</th>{times.join(marked)}<td class='amp-end'>{end}</td></tr>"


def _special_reason(significand: int, fmt: FloatFormat) -> str:
    if fmt.specials == "fn":
        return (
            "The exponent and significand bits are all ones: that is NaN, not a number. Every "
            "other pattern is a number."
        )
    if significand == 0:
        last, start = Fraction(fmt.max), Fraction(fmt.max) + Fraction(ulp(fmt.max, fmt)) / 2
        return (
            "The exponent bits are all ones and the significand bits all zeros: infinity. The "
            f"nearest number in size is {number_text(last)}; anything from {number_text(start)} on "
            "becomes infinity."
        )
    return (
        "The exponent bits are all ones and the significand bits are not all zeros: NaN, not a "
        "number. It equals nothing, not even itself."
    )


def _exact(value: float) -> Exact:
    return Fraction(value) if math.isfinite(value) else value


def _signed(error: Fraction | None) -> str:
    if error is None:
        return "–"
    return f"{'+' if error > 0 else ''}{_small(error)}"


def _small(number: Fraction) -> str:
    return decimal_text(number, 5)[0]


def _percent(relative: Fraction) -> str:
    if relative >= Fraction(1, 10_000):
        return f"{decimal_text(relative * 100, 3)[0]} %"
    return decimal_text(relative, 3)[0]
