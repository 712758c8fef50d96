"""Show a trace: as text, as a table in a notebook, and as what `DtypeTrace` shows.
Data in, strings out.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import torch

from amp_course.autocast.records import ModuleRow, Op, Phase, Record
from amp_course.kit.colours import FORMAT_COLOURS
from amp_course.kit.svg import FAINT, GRID, INK
from amp_course.kit.table import text_table
from amp_course.kit.tensors import short

_CELL = "text-align:left;padding:2px 9px 2px 0;vertical-align:top;white-space:nowrap"
_MOST_OPS = 60  # that are listed of one module
_OTHER = "#888888"  # the colour of a dtype that the course has none for


def trace_text(trace: Record) -> str:
    """Return a trace as a table in plain text, one line a module, with the totals under it."""
    head = ["module", "kind", "in", "out", "casts", "bytes", "reused"]
    lines = []
    for row in trace.modules:
        name = row.path + (f" ×{row.calls}" if row.calls > 1 else "")
        numbers = map(_number, (row.casts, row.cast_bytes, row.reused))
        lines.append([name, row.kind, _names(row.inputs), _names(row.outputs), *numbers])
    if trace.has_backward:
        head += ["grads", "back"]
        for line, row in zip(lines, trace.modules, strict=True):
            line += [_names(row.computed), str(row.back_casts or "")]
    table = text_table([head, *lines], right={"casts", "bytes", "reused", "back"})
    return "\n".join([heading(trace), table, *_ending(trace)])


def trace_table(trace: Record) -> str:
    """Return a trace as the HTML of a notebook: its modules forward,
    and backward if there is that.
    """
    backward = module_table(trace, "backward") if trace.has_backward else ""
    ending = "<br>".join(escape(line) for line in _ending(trace))
    return (
        f'<div style="color:{INK}"><b>{escape(heading(trace))}</b>'
        f"{module_table(trace, 'forward')}{backward}{ending}</div>"
    )


def told_notes(trace: Record) -> str:
    """Return a trace's notes as one line, each with a capital letter."""
    return "; ".join(note[:1].upper() + note[1:] for note in trace.notes)


def heading(trace: Record) -> str:
    """Say what was traced: 'SimpleNet under autocast("cpu", bf16)'."""
    how = f'autocast("{trace.device_type}", {short(trace.dtype)})' if trace.dtype else "no autocast"
    fake = ", on fake tensors: there is no such device here" if trace.fake else ""
    return f"{trace.name} under {how}{fake}"


def panel_html(trace: Record, phase: Phase, selected: str) -> str:
    """Return the panel's HTML: totals, the modules in one direction,
    and the ops of the selected one.
    """
    return (
        f'<div style="color:{INK};line-height:1.5"><div role="status" '
        f'aria-live="polite">{_totals(trace, phase)}</div>'
        f"{module_table(trace, phase, selected)}{_ops_table(trace, phase, selected)}</div>"
    )


def module_table(trace: Record, phase: Phase, selected: str = "") -> str:
    """Return one row a module: forward, the dtypes at its door;
    backward, those that its gradients were computed in.
    """
    forward = phase == "forward"
    head = (
        ("module", "kind", "in → out", "casts", "bytes", "reused")
        if forward
        else ("module", "kind", "gradients in", "cast back", "bytes")
    )
    most = max((_bytes(row, forward) for row in trace.modules), default=0)
    rows = "".join(_module_row(row, forward, most, row.path == selected) for row in trace.modules)
    return (
        f'<div style="overflow-x:auto"><table aria-label="modules, {phase}" '
        f'style="border-collapse:collapse;margin:4px 0"><thead><tr style="border-bottom:1px solid '
        f'{GRID}">{_head(head)}</tr></thead><tbody>{rows}</tbody></table></div>'
    )


def chips(dtypes: Sequence[torch.dtype]) -> str:
    """Return dtypes as framed labels in the colour of each format; a dash for none."""
    if not dtypes:
        return f'<span style="color:{FAINT}">–</span>'
    return " ".join(chip(short(dtype)) for dtype in dtypes)


def chip(name: str) -> str:
    """Return a format's name as a framed label in its colour. Example: "fp16" """
    return (
        '<span style="display:inline-block;min-width:2.5em;text-align:center;padding:0 '
        "2px;border-radius:3px;"
        f"border:1px solid "
        f'{FORMAT_COLOURS.get(name, _OTHER)};border-left-width:7px">{escape(name)}</span>'
    )


def _module_row(row: ModuleRow, forward: bool, most: int, selected: bool) -> str:
    depth = row.path.count(".") + (not row.path.startswith("("))
    steps = row.path.split(".")
    # in a list of modules, "blocks.0" says more than "0"
    last = steps[-2:] if steps[-1].isdigit() else steps[-1:]
    name = escape(".".join(last)) + (f" × {row.calls}" if row.calls > 1 else "")
    mark = "▸ " if selected else ""
    path = (
        f'<span title="{escape(row.path)}" '
        f'style="margin-left:{depth * 0.8:.1f}em">{mark}{name}</span>'
    )
    cells = [path, escape(row.kind)]
    if forward:
        cells += [f"{chips(row.inputs)} → {chips(row.outputs)}", _number(row.casts)]
    else:
        cells += [chips(row.computed), _number(row.back_casts)]
    cells.append(_bar(_bytes(row, forward), most))
    if forward:
        cells.append(_number(row.reused))
    weight = "font-weight:bold;" if selected else ""
    return "<tr>" + "".join(f'<td style="{weight}{_CELL}">{cell}</td>' for cell in cells) + "</tr>"


def _bytes(row: ModuleRow, forward: bool) -> int:
    return row.cast_bytes if forward else row.back_bytes


def _number(number: int) -> str:
    return f"{number:,}" if number else ""


def _bar(size: int, most: int) -> str:
    if not size:
        return ""
    width = max(1, round(48 * size / most))
    bar = (
        f'<span aria-hidden="true" '
        f'style="display:inline-block;width:{width}px;height:0.7em;background:{FAINT}"></span>'
    )
    return f"{bar} {size:,}"


def _totals(trace: Record, phase: Phase) -> str:
    if phase == "backward" and not trace.has_backward:
        return escape(told_notes(trace)) or "No backward pass."
    casts = trace.casts(phase)
    weights = sum(op.source != "activation" for op in casts)
    reused = sum(row.reused for row in trace.modules)
    if phase == "backward":
        said = (
            f"<b>{len(casts)}</b> gradient{'s' * (len(casts) != 1)} cast back, "
            f"<b>{trace.cast_bytes(phase):,}</b> bytes"
        )
    else:
        said = (
            f"<b>{len(casts)}</b> {_casts(len(casts))} inserted ({weights} of weights, "
            f"{len(casts) - weights} of activations), <b>{trace.cast_bytes(phase):,}</b> bytes; "
            f"{reused} {_casts(reused)} of weights saved by the cache"
        )
    return f"{escape(heading(trace))}: {said}."


def _casts(number: int) -> str:
    return "cast" if number == 1 else "casts"


def _ops_table(trace: Record, phase: Phase, selected: str) -> str:
    ops = [op for op in trace.of(selected, phase) if not op.view]
    if not ops:
        none = f"{escape(selected)}: no op of its own in the {phase} pass."
        return f'<div style="color:{FAINT}">{none}</div>'
    rows = "".join(
        f'<tr><td style="{_CELL}">{escape(op.call)}</td><td style="{_CELL}">{escape(op.op)}</td>'
        f'<td style="{_CELL}">{chips(_once(op.inputs))} → {chips(_once(op.outputs))}</td>'
        f'<td style="{_CELL};white-space:normal">{escape(_remark(op))}</td></tr>'
        for op in ops[:_MOST_OPS]
    )
    more = f"<div>… and {len(ops) - _MOST_OPS:,} more ops</div>" if len(ops) > _MOST_OPS else ""
    called = "called" if phase == "forward" else "node of the graph"
    head = _head((called, "op that ran", "in → out", ""))
    return (
        f'<div style="overflow-x:auto;border-top:1px solid {GRID};margin-top:6px"><table '
        f'aria-label="ops of {escape(selected)}, {phase}" '
        f'style="border-collapse:collapse;margin:4px 0">'
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{more}</div>"
    )


def _remark(op: Op) -> str:
    who = {
        "autocast": "inserted by autocast",
        "model": "the model’s own",
        "op": f"made by {op.call} itself",
        "gradient": "the gradient’s way back",
    }
    if op.cast:
        return f"cast of {op.source}, {who[op.cast]}, {op.bytes:,} bytes"
    return f"{', '.join(op.reused)} from the cache" if op.reused else ""


def _head(names: Sequence[str]) -> str:
    return "".join(f'<th scope="col" style="{_CELL}">{name}</th>' for name in names)


def _once(dtypes: Sequence[torch.dtype]) -> tuple[torch.dtype, ...]:
    return tuple(dict.fromkeys(dtypes))


def _names(dtypes: Sequence[torch.dtype]) -> str:
    return " ".join(map(short, dtypes)) or "-"


def _ending(trace: Record) -> list[str]:
    reused, casts = sum(row.reused for row in trace.modules), len(trace.casts())
    total = f"{casts} {_casts(casts)} inserted, {trace.cast_bytes():,} bytes"
    if trace.recomputed:
        total += f" ({len(trace.recomputed)} of them while a checkpoint recomputed)"
    return [f"{total}; {reused} saved by the weight cache", *trace.notes]
