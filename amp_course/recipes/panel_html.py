"""Draw what `RecipeExplorer` shows, as HTML: bytes for each parameter as bars, and a table."""

from __future__ import annotations

from html import escape

from amp_course.autocast.trace_html import chip
from amp_course.kit.colours import KEPT
from amp_course.kit.markup import percent
from amp_course.kit.memory import bytes_text
from amp_course.kit.panel_parts import cells, scrolling, status, table, view
from amp_course.kit.svg import FAINT, box, picture, swatch, text
from amp_course.recipes.measuring import Bytes, Measured, UpdateReach, formats_text

Side = tuple[Measured, UpdateReach]
_WIDTH, _LEFT, _RIGHT, _TALL, _ROW = 660, 96, 610, 26, 68
_SHORT = {"optimizer_state": "state"}  # so that a narrow part has room for its name
_LONG = {"master": "master weights", "optimizer_state": "optimizer state"}
_TOGETHER = "<b>together, bytes per parameter</b>"
_CELL = "text-align:left;padding:2px 14px 2px 0;vertical-align:top"


def recipe_view(chosen: Side, fp32: Side, size: int, optimizer: str) -> str:
    """Return the panel's HTML; size: the parameters of the model that the bytes are scaled to."""
    said = status(verdict(chosen, fp32, size, optimizer), "margin-bottom:4px")
    return view(said, _bars(chosen[0], fp32[0]), _table(chosen, fp32, size))


def verdict(chosen: Side, fp32: Side, size: int, optimizer: str) -> str:
    """Say in two sentences what a recipe keeps, and if its first update reached the weights."""
    row, reached = chosen
    each = row.bytes_per_parameter
    said = (
        f"<b>{escape(row.label)}</b> with {escape(optimizer)} keeps <b>{each:.1f} bytes</b> for "
        f"each parameter, fp32 {fp32[0].bytes_per_parameter:.1f}: {bytes_text(size * each)} for "
        f"{size_text(size)} parameters, before any activation. "
    )
    if reached.broken:
        return (
            f"{said}✗ The first step left <b>{percent(reached.broken)} of the weights inf or "
            "NaN</b>: this training is over."
        )
    said += f"The first step changed <b>{percent(reached.weights)}</b> of the weights"
    if reached.masters is not None:
        said += f" and {percent(reached.masters)} of their masters"
    return f"{said} (fp32: {percent(fp32[1].weights)})."


def size_text(parameters: int) -> str:
    """Write a large number for people. Example: 7_000_000_000 → "7 billion" """
    return f"{parameters / 1e9:g} billion" if parameters >= 1e9 else f"{parameters / 1e6:g} million"


def _bars(row: Measured, fp32: Measured) -> str:
    rows = {row.label: row} if row.name == fp32.name else {row.label: row, "fp32": fp32}
    most = max(one.bytes_per_parameter for one in rows.values())
    parts, alts = [], []
    for place, (label, one) in enumerate(rows.items()):
        top, left = 4 + place * _ROW, float(_LEFT)
        middle, under = top + _TALL / 2 + 4, top + _TALL + 14
        parts.append(text(_LEFT - 8, middle, label, anchor="end", bold=not place))
        words = []
        for kind, (colour, hatch) in KEPT.items():
            sizes, each = getattr(one, kind), one.bytes_of_each(kind)
            if not each:
                continue
            width, formats = (_RIGHT - _LEFT) * each / most, formats_text(sizes)
            tip = f"{_name(kind)}: {formats}, {each:.2f} bytes for each parameter"
            parts.append(box(left, top, width - 1.5, _TALL, colour, hatch=hatch, tip=tip))
            parts.append(text(left, under, _SHORT.get(kind, kind)))
            parts.append(text(left, under + 14, f"{next(iter(sizes))} {each:.1f}", fill=FAINT))
            words.append(f"{_name(kind)} {formats} {each:.1f}")
            left += width
        total = f"{one.bytes_per_parameter:.1f}"
        parts.append(text(left + 6, middle, total, bold=not place))
        alts.append(f"{label} {total} ({', '.join(words)})")
    alt = f"bytes for each parameter: {'; '.join(alts)}"
    return picture(_WIDTH, 4 + len(rows) * _ROW, *parts, label=alt)


def _table(chosen: Side, fp32: Side, size: int) -> str:
    row = chosen[0]
    formats = {
        **{_head(kind): _chips(getattr(row, kind)) for kind in KEPT},
        "batch norm statistics": _chips(row.batch_norm),
        "activations of this batch": _chips(row.activations),
    }
    columns = _column(*chosen, size), _column(*fp32, size)
    columns[0][_TOGETHER] = f"<b>{columns[0][_TOGETHER]}</b>"
    # on a narrow page a row's name is broken, its values are not
    rows = (
        cells([name], _CELL)
        + cells(
            [formats.get(name, ""), *(column[name] for column in columns)],
            f"{_CELL};white-space:nowrap",
        )
        for name in columns[0]
    )
    return scrolling(table("measured", ("", "formats", escape(row.label), "fp32"), rows, _CELL))


def _column(row: Measured, reached: UpdateReach, size: int) -> dict[str, str]:
    """Return what was measured of one recipe, by the names of the table's rows."""
    each = row.bytes_per_parameter
    kinds = {kind: row.bytes_of_each(kind) for kind in KEPT}
    return {
        **{_head(kind): f"{per:.1f}" if per else "–" for kind, per in kinds.items()},
        _TOGETHER: f"{each:.1f}",
        "… when the optimizer steps": f"{row.at_step / row.parameters:.1f}",
        "… the autocast copies of weights": f"{row.cast_copies / row.parameters:.1f}",
        f"<b>{size_text(size)} parameters</b>": bytes_text(size * each),
        "batch norm statistics": _size(row.batch_norm),
        "activations of this batch": _size(row.activations),
        "loss scale": escape(row.scaling),
        "weights changed by the first step": percent(reached.weights),
        "masters changed by the first step": (
            "–" if reached.masters is None else percent(reached.masters)
        ),
        "weights inf or NaN after it": percent(reached.broken),
    }


def _head(kind: str) -> str:
    return f"{swatch(*KEPT[kind])} {_name(kind)}"


def _name(kind: str) -> str:
    return _LONG.get(kind, kind)


def _chips(sizes: Bytes) -> str:
    return " ".join(map(chip, sizes)) or f'<span style="color:{FAINT}">–</span>'


def _size(sizes: Bytes) -> str:
    return bytes_text(sum(sizes.values())) if sizes else "–"
