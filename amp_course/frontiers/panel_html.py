"""What `BlockExplorer` shows, as HTML: a verdict, the row before and after rounding, and a table of
measurements.
"""

from __future__ import annotations

import math
from html import escape
from operator import attrgetter

from amp_course.bits.formats import FloatFormat
from amp_course.frontiers.block_errors import RowErrors
from amp_course.frontiers.block_formats import BLOCK_FORMATS
from amp_course.kit.colours import ZONES
from amp_course.kit.panel_parts import cells, scrolling, status, table, view
from amp_course.kit.svg import FAINT, GRID, INK, box, line, picture, swatch, text

# colour and hatch by what became of a number
FATES = {"kept": ZONES["normal"], "became 0": ZONES["lost"], "clipped": ZONES["overflow"]}
_LEAST_ERROR = 1e-3  # the bottom of the logarithmic axis of errors, which ends at 1
_WIDTH, _LEFT, _RIGHT = 660, 58, 650
_TOP, _MIDDLE = 26, 94  # of the numbers: +4 standard deviations, and 0
_ERRORS_TOP, _ERRORS_FLOOR, _HEIGHT = 204, 318, 364
_TALLEST = 4.0  # standard deviations
_INSIDE = "var(--jp-layout-color2, #eee)"  # the outlier's block
_CELL = "text-align:left;padding:2px 18px 2px 0;vertical-align:top"


def block_view(
    row: RowErrors, whole: RowErrors, other: RowErrors | None, place: int, unit: float
) -> str:
    """Return the panel's HTML.

    row, whole: the row as chosen, and with one scale for all of it
    other:      with another block size or element, for the verdict to compare with, if any
    place:      of the outlier
    unit:       the standard deviation of the other numbers
    """
    said = status(verdict(row, other, place, unit), "margin-bottom:6px")
    return view(said, _picture(row, place, unit), _legend(), _table(row, whole, place))


def verdict(row: RowErrors, other: RowErrors | None, place: int, unit: float) -> str:
    """Say what the outlier does to its neighbours, and whether it is clipped."""
    block = row.block(place)
    count, neighbours, lost = len(block), len(block) - 1, row.zeroed_neighbours(place)
    size = _deviations(row.values[place], unit)
    if not row.sets_scale(place):
        return (
            f"At {size}, the outlier is smaller than another number of its block, so it sets no "
            f"scale. {_some(lost, neighbours).capitalize()} of its {neighbours} neighbours "
            f"became 0."
        )
    text = f"The outlier sets the scale of <b>{count} numbers</b>: "
    text += f"<b>{_some(lost, neighbours)}</b> of its {neighbours} neighbours became 0."
    if other is not None:
        others = len(other.block(place)) - 1
        would = _some(other.zeroed_neighbours(place), others)
        of = "" if would == "all" else "of the "
        text += f" With {_difference(other, row)}, {would} {of}{others} would."
    if row.clipped[place]:
        clipped = _deviations(row.rounded[place], unit)
        text += f" The scale is too small for the outlier itself: {size} is clipped to {clipped}."
    return text


def name_text(row: RowErrors) -> str:
    """Name a choice. Examples: "MXFP4: E2M1, blocks of 32", "E2M1, blocks of 8",
    "E4M3, one scale for all 64"
    """
    fields = attrgetter("element", "size", "scale")  # all but the rounding of the scale
    chosen = row.block_format
    known = "".join(f"{fmt.name}: " for fmt in BLOCK_FORMATS if fields(fmt) == fields(chosen))
    return f"{known}{short_name(chosen.element)}, {_blocks_text(row)}"


def short_name(element: FloatFormat) -> str:
    """Return a format's name without its width. Example: "fp8 E4M3" → "E4M3" """
    return element.name.split(" ", 1)[-1]


def percent_text(share: float) -> str:
    """Write an error as a percentage of three digits. Examples:
    0.0264 → "2.64 %", 0.9981 → "99.8 %"
    """
    return f"{100 * share:.3g} %"


def _blocks_text(row: RowErrors) -> str:
    size, count = row.block_format.size, len(row.values)
    return f"one scale for all {count}" if size >= count else f"blocks of {size}"


def _difference(other: RowErrors, row: RowErrors) -> str:
    if other.block_format.size != row.block_format.size:
        return _blocks_text(other)
    return f"{escape(short_name(other.block_format.element))} elements"


def _some(some: int, count: int) -> str:
    return "none" if not some else "all" if some == count else str(some)


def _deviations(value: float, unit: float) -> str:
    return f"{value / unit:.3g} σ"


# ---- the row: numbers above, errors below ----


def _picture(row: RowErrors, place: int, unit: float) -> str:
    count, size = len(row.values), row.block_format.size
    wide = (_RIGHT - _LEFT) / count
    block = row.block(place)
    left, high = _LEFT + block.start * wide, _ERRORS_FLOOR - _TOP
    parts = [box(left, _TOP, len(block) * wide, high, _INSIDE), *_axes(count, size, wide)]
    for number in range(count):
        parts += _number(row, number, _LEFT + number * wide, wide, unit)
    exact, rounded = (_deviations(of[place], unit) for of in (row.values, row.rounded))
    x = _LEFT + (place + 0.5) * wide
    anchor = "start" if x < 160 else "end" if x > _RIGHT - 120 else "middle"
    parts.append(text(x, _TOP - 10, f"outlier: {exact} → {rounded}", anchor=anchor, bold=True))
    label = (
        f"{count} numbers and their relative errors; at place {place} an outlier, {exact}, rounded "
        f"to {rounded}; in its block, places {block.start} to {block.stop - 1}, "
        f"{row.zeroed_neighbours(place)} of {len(block) - 1} neighbours became 0"
    )
    return picture(_WIDTH, _HEIGHT, *parts, label=label)


def _axes(count: int, size: int, wide: float) -> list[str]:
    parts = [text(0, _TOP - 12, "numbers", fill=FAINT)]
    for deviations in (_TALLEST, 0.0, -_TALLEST):
        y = _height(deviations)
        parts.append(line(_LEFT, y, _RIGHT, y, stroke=GRID))
        parts.append(text(_LEFT - 8, y + 4, _signed_text(deviations), anchor="end", fill=FAINT))
    parts.append(text(0, _ERRORS_TOP - 16, "error", fill=FAINT))
    for share in (1.0, 0.1, 0.01, _LEAST_ERROR):
        y = _error_height(share)
        parts.append(line(_LEFT, y, _RIGHT, y, stroke=GRID))
        parts.append(text(_LEFT - 8, y + 4, f"{100 * share:g} %", anchor="end", fill=FAINT))
    for edge in range(0, count + 1, size):
        x = _LEFT + edge * wide
        parts.append(line(x, _TOP, x, _ERRORS_FLOOR + 5, stroke=FAINT))
    for start in range(0, count, max(size, 8)):
        x, y = _LEFT + start * wide, _ERRORS_FLOOR + 18
        parts.append(text(x, y, str(start), anchor="middle", fill=FAINT))
    middle = (_LEFT + _RIGHT) / 2
    caption = "place in the row; a line where a block begins, shaded: the outlier’s block"
    return [*parts, text(middle, _ERRORS_FLOOR + 38, caption, anchor="middle", fill=FAINT)]


def _number(row: RowErrors, place: int, x: float, wide: float, unit: float) -> list[str]:
    """Draw a number as a grey bar, its rounded value as a dash, and its error as a bar whose
    colour shows its fate.
    """
    exact, rounded = (of[place] / unit for of in (row.values, row.rounded))
    error = row.errors[place]
    became = "became 0" if row.zeroed[place] else "clipped" if row.clipped[place] else "kept"
    tip = (
        f"place {place}: {_signed_text(exact)} becomes {_signed_text(rounded)}; error "
        f"{percent_text(error)}, {became}"
    )
    left, width = x + 0.15 * wide, 0.7 * wide
    high, low = sorted((_height(exact), float(_MIDDLE)))
    dash, top, (colour, hatch) = _height(rounded), _error_height(error), FATES[became]
    return [
        box(left, high, width, low - high, "#999999", tip=tip),
        line(left, dash, left + width, dash, stroke=INK, width=2.4),
        box(left, top, width, _ERRORS_FLOOR - top, colour, hatch=hatch, tip=tip),
    ]


def _height(deviations: float) -> float:
    return _MIDDLE - (_MIDDLE - _TOP) * min(max(deviations / _TALLEST, -1.0), 1.0)


def _error_height(share: float) -> float:
    """Return the y of an error on a logarithmic axis that ends at 100 %."""
    decades = math.log10(min(max(share, _LEAST_ERROR), 1.0) / _LEAST_ERROR)
    return _ERRORS_FLOOR - (_ERRORS_FLOOR - _ERRORS_TOP) * decades / -math.log10(_LEAST_ERROR)


def _signed_text(deviations: float) -> str:
    return f"{deviations:.3g} σ".replace("-", "−")


def _legend() -> str:
    fates = "".join(
        f'<span style="margin-right:1.6em;white-space:nowrap">{swatch(*style)} {name}</span>'
        for name, style in FATES.items()
    )
    note = "bar: before, dash: after rounding; σ: standard deviation of the others"
    return f'<div style="margin:2px 0 6px">{fates}<span style="color:{FAINT}">{note}</span></div>'


# ---- the table ----


def _table(row: RowErrors, whole: RowErrors, place: int) -> str:
    sides = [row] if row.block_format.size >= len(row.values) else [row, whole]
    count = len(row.values)
    columns = [
        {
            "": escape(name_text(side)),
            "bits a number, scales included": f"{float(side.block_format.bits):.3g}",
            "relative error of the row": percent_text(side.error()),
            "… without the outlier": f"<b>{percent_text(side.error(place))}</b>",
            "became 0": f"<b>{sum(side.zeroed)} of {count}</b>",
            "clipped: too large for their block": f"{sum(side.clipped)} of {count}",
            "largest number ÷ largest that fits, by block": _filled_text(side),
        }
        for side in sides
    ]
    head, *body = ((name, *(column[name] for column in columns)) for name in columns[0])
    lines = (cells(contents, _CELL) for contents in body)
    return scrolling(table("measured", head, lines, _CELL))


def _filled_text(row: RowErrors) -> str:
    least, most = (f"{100 * share:.0f}" for share in (min(row.filled), max(row.filled)))
    return f"{least} %" if least == most else f"{least} to {most} %"
