"""Draw what `RecipeExplorer` shows, as HTML: bytes for each parameter as bars next to fp32's,
and a table of measurements.
"""

from __future__ import annotations

from html import escape

from amp_course.autocast.trace_html import chip
from amp_course.kit.colours import KEPT
from amp_course.kit.markup import percent
from amp_course.kit.memory import bytes_text
from amp_course.kit.svg import FAINT, GRID, INK, box, picture, swatch, text
from amp_course.recipes.measuring import Bytes, Measured, Reach

Side = tuple[Measured, Reach]
_WIDTH, _LEFT, _RIGHT, _TALL, _ROW = 660, 96, 610, 26, 68
_SHORT = {"optimizer_state": "state"}  # so that a narrow part has room for its name
_LONG = {"master": "master weights", "optimizer_state": "optimizer state"}
_TOGETHER = "<b>together, bytes per parameter</b>"
_CELL = "text-align:left;padding:2px 14px 2px 0;vertical-align:top"


def recipe_view(chosen: Side, fp32: Side, size: int, optimizer: str) -> str:
    """Return the panel's HTML; size: the parameters of the model that the bytes are multiplied up
    to.
    """
    row, base = chosen[0], fp32[0]
    return (
        f'<div style="color:{INK};line-height:1.5"><div role="status" aria-live="polite" '
        f'style="margin-bottom:4px">{verdict(chosen, fp32, size, optimizer)}</div>'
        f"{_bars(row, base)}{_table(chosen, fp32, size)}</div>"
    )


def verdict(chosen: Side, fp32: Side, size: int, optimizer: str) -> str:
    """Say in two sentences what a recipe keeps, and whether its first update arrived."""
    row, reached = chosen
    keeps, would = (f"{side[0].bytes_per_parameter:.1f}" for side in (chosen, fp32))
    said = (
        f"<b>{escape(row.label)}</b> with {escape(optimizer)} keeps <b>{keeps} bytes</b> for each "
        f"parameter, fp32 {would}: {bytes_text(size * row.bytes_per_parameter)} for "
        f"{size_text(size)} parameters, before any activation. "
    )
    if reached.broken:
        return (
            f"{said}✗ The first step left <b>{percent(reached.broken)} of the weights inf or "
            f"NaN</b>: this training is over."
        )
    said += f"The first step changed <b>{percent(reached.weights)}</b> of the weights"
    if reached.masters is not None:
        said += f" and {percent(reached.masters)} of their masters"
    return f"{said} (fp32: {percent(fp32[1].weights)})."


def size_text(parameters: int) -> str:
    """Write a large number for people. Example: 7_000_000_000 → "7 billion" """
    return f"{parameters / 1e9:g} billion" if parameters >= 1e9 else f"{parameters / 1e6:g} million"


def _bars(row: Measured, base: Measured) -> str:
    rows = [(row.label, row)] if row.name == base.name else [(row.label, row), ("fp32", base)]
    most = max(one.bytes_per_parameter for _, one in rows)
    parts: list[str] = []
    for place, (label, one) in enumerate(rows):
        top, left = 4 + place * _ROW, float(_LEFT)
        middle, under = top + _TALL / 2 + 4, top + _TALL + 14
        parts.append(text(_LEFT - 8, middle, label, anchor="end", bold=not place))
        for kind, (colour, hatch) in KEPT.items():
            sizes: Bytes = getattr(one, kind)
            each = sum(sizes.values()) / one.parameters
            width = (_RIGHT - _LEFT) * each / most
            if not each:
                continue
            tip = f"{_name(kind)}: {' + '.join(sizes)}, {each:.2f} bytes for each parameter"
            parts.append(box(left, top, width - 1.5, _TALL, colour, hatch=hatch, tip=tip))
            parts.append(text(left, under, _SHORT.get(kind, kind)))
            parts.append(text(left, under + 14, f"{next(iter(sizes))} {each:.1f}", fill=FAINT))
            left += width
        parts.append(text(left + 6, middle, f"{one.bytes_per_parameter:.1f}", bold=not place))
    said = "; ".join(
        f"{label} {one.bytes_per_parameter:.1f} ({_parts_text(one)})" for label, one in rows
    )
    return picture(_WIDTH, 4 + len(rows) * _ROW, *parts, label=f"bytes for each parameter: {said}")


def _parts_text(row: Measured) -> str:
    """Name what is kept, its formats and its bytes for each parameter:
    "weights fp16 2.1, gradients fp16 2.1".
    """
    kept = {kind: getattr(row, kind) for kind in KEPT}
    return ", ".join(
        f"{_name(kind)} {' + '.join(sizes)} {sum(sizes.values()) / row.parameters:.1f}"
        for kind, sizes in kept.items()
        if sum(sizes.values())
    )


def _table(chosen: Side, fp32: Side, size: int) -> str:
    row = chosen[0]
    formats = {
        **{_head(kind): _chips(getattr(row, kind)) for kind in KEPT},
        "batch norm statistics": _chips(row.batch_norm),
        "activations of this batch": _chips(row.activations),
    }
    mine, base = (_column(*side, size) for side in (chosen, fp32))
    mine[_TOGETHER] = f"<b>{mine[_TOGETHER]}</b>"
    body = "".join(
        f"<tr>{_cells(name, formats.get(name, ''), value, base[name])}</tr>"
        for name, value in mine.items()
    )
    head = "".join(
        f'<th scope="col" style="{_CELL}">{name}</th>'
        for name in ("", "formats", escape(row.label), "fp32")
    )
    return (
        '<div style="overflow-x:auto"><table aria-label="measured" '
        'style="border-collapse:collapse;margin:4px 0">'
        f'<thead><tr style="border-bottom:1px solid {GRID}">{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _column(row: Measured, reached: Reach, size: int) -> dict[str, str]:
    """Return what was measured of one recipe, by what the table calls it."""
    each = row.bytes_per_parameter
    kinds = {kind: sum(getattr(row, kind).values()) / row.parameters for kind in KEPT}
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


def _cells(name: str, *values: str) -> str:
    """Return a row's cells; on a narrow page its name is broken, its values are not."""
    rest = "".join(f'<td style="{_CELL};white-space:nowrap">{value}</td>' for value in values)
    return f'<td style="{_CELL}">{name}</td>{rest}'


def _name(kind: str) -> str:
    return _LONG.get(kind, kind)


def _chips(sizes: Bytes) -> str:
    return " ".join(map(chip, sizes)) or f'<span style="color:{FAINT}">–</span>'


def _size(sizes: Bytes) -> str:
    return bytes_text(sum(sizes.values())) if sizes else "–"
