"""Write a trace as text, as a notebook's table, and as what `DtypeTrace` shows."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import torch

from amp_course.autocast.records import ModuleRow, Op, Phase, Record
from amp_course.kit.colours import FORMAT_COLOURS
from amp_course.kit.panel_parts import cells, scrolling, status, table, view
from amp_course.kit.svg import FAINT, GRID, INK
from amp_course.kit.table import text_table
from amp_course.kit.tensors import short

_CELL = "text-align:left;padding:2px 9px 2px 0;vertical-align:top;white-space:nowrap"
_MOST_OPS = 60  # of one module that are listed
_OTHER = "#888888"  # the colour of dtypes without one of their own


def trace_text(trace: Record) -> str:
    """Return a trace as a table in plain text, one line a module, with the totals under it."""
    head = "module kind in out casts bytes reused" + " grads back" * trace.has_backward
    rows = [head.split()]
    for row in trace.modules:
        name = row.path + (f" ×{row.calls}" if row.calls > 1 else "")
        numbers = map(_number, (row.casts, row.cast_bytes, row.reused))
        rows.append([name, row.kind, _names(row.inputs), _names(row.outputs), *numbers])
        if trace.has_backward:
            rows[-1] += [_names(row.computed), str(row.back_casts or "")]
    modules = text_table(rows, right={"casts", "bytes", "reused", "back"})
    return "\n".join([heading(trace), modules, *_ending(trace)])


def trace_table(trace: Record) -> str:
    """Return a trace as the HTML of a notebook: its modules forward and, if traced, backward."""
    backward = module_table(trace, "backward") if trace.has_backward else ""
    ending = "<br>".join(escape(line) for line in _ending(trace))
    return (
        f'<div style="color:{INK}"><b>{escape(heading(trace))}</b>'
        f"{module_table(trace, 'forward')}{backward}{ending}</div>"
    )


def notes_text(trace: Record) -> str:
    """Return a trace's notes as one line, each with a capital letter."""
    return "; ".join(note[:1].upper() + note[1:] for note in trace.notes)


def heading(trace: Record) -> str:
    """Say what was traced: 'SimpleNet under autocast("cpu", bf16)'."""
    how = f'autocast("{trace.device_type}", {short(trace.dtype)})' if trace.dtype else "no autocast"
    fake = ", on fake tensors: there is no such device here" if trace.fake else ""
    return f"{trace.name} under {how}{fake}"


def panel_html(trace: Record, phase: Phase, selected: str) -> str:
    """Return the panel's HTML: totals, the modules in one direction, the selected one's ops."""
    return view(
        status(_totals(trace, phase)),
        module_table(trace, phase, selected),
        _ops_table(trace, phase, selected),
    )


def module_table(trace: Record, phase: Phase, selected: str = "") -> str:
    """Return a row for each module: its dtypes forward, or those of its gradients backward."""
    forward = phase == "forward"
    head = ["module", "kind", "gradients in", "cast back", "bytes"]
    if forward:
        head = ["module", "kind", "in → out", "casts", "bytes", "reused"]
    most = max((_bytes(row, forward) for row in trace.modules), default=0)
    rows = (_module_row(row, forward, most, row.path == selected) for row in trace.modules)
    return scrolling(table(f"modules, {phase}", head, rows, _CELL))


def chips(dtypes: Sequence[torch.dtype]) -> str:
    """Return dtypes as framed labels in the colour of each format; a dash for none."""
    if not dtypes:
        return f'<span style="color:{FAINT}">–</span>'
    return " ".join(chip(short(dtype)) for dtype in dtypes)


def chip(name: str) -> str:
    """Return a format's name as a framed label in its colour. Example: "fp16" """
    colour = FORMAT_COLOURS.get(name, _OTHER)
    return (
        '<span style="display:inline-block;min-width:2.5em;text-align:center;padding:0 2px;'
        f'border-radius:3px;border:1px solid {colour};border-left-width:7px">{escape(name)}</span>'
    )


def _module_row(row: ModuleRow, forward: bool, most: int, selected: bool) -> str:
    steps = row.path.split(".")
    depth = len(steps) - row.path.startswith("(")
    # in a list of modules, "blocks.0" says more than "0"
    last = steps[-2:] if steps[-1].isdigit() else steps[-1:]
    name = escape(".".join(last)) + (f" × {row.calls}" if row.calls > 1 else "")
    mark, weight = ("▸ ", "font-weight:bold;") if selected else ("", "")
    indent = f"margin-left:{depth * 0.8:.1f}em"
    path = f'<span title="{escape(row.path)}" style="{indent}">{mark}{name}</span>'
    bar = _bar(_bytes(row, forward), most)
    values = [chips(row.computed), _number(row.back_casts), bar]
    if forward:
        names = f"{chips(row.inputs)} → {chips(row.outputs)}"
        values = [names, _number(row.casts), bar, _number(row.reused)]
    return cells([path, escape(row.kind), *values], weight + _CELL)


def _bytes(row: ModuleRow, forward: bool) -> int:
    return row.cast_bytes if forward else row.back_bytes


def _number(number: int) -> str:
    return f"{number:,}" if number else ""


def _bar(size: int, most: int) -> str:
    if not size:
        return ""
    width = max(1, round(48 * size / most))
    style = f"display:inline-block;width:{width}px;height:0.7em;background:{FAINT}"
    return f'<span aria-hidden="true" style="{style}"></span> {size:,}'


def _totals(trace: Record, phase: Phase) -> str:
    if phase == "backward" and not trace.has_backward:
        return escape(notes_text(trace)) or "No backward pass."
    casts, size = trace.casts(phase), f"<b>{trace.cast_bytes(phase):,}</b> bytes"
    if phase == "backward":
        gradients = "gradient" if len(casts) == 1 else "gradients"
        said = f"<b>{len(casts)}</b> {gradients} cast back, {size}"
    else:
        weights = sum(op.source != "activation" for op in casts)
        reused = sum(row.reused for row in trace.modules)
        said = (
            f"<b>{len(casts)}</b> {_casts(len(casts))} inserted ({weights} of weights, "
            f"{len(casts) - weights} of activations), {size}; "
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
    rows = (
        cells([escape(op.call), escape(op.op), _in_and_out(op)], _CELL)
        + cells([escape(_remark(op))], f"{_CELL};white-space:normal")
        for op in ops[:_MOST_OPS]
    )
    called = "called" if phase == "forward" else "node of the graph"
    head, label = (called, "op that ran", "in → out", ""), f"ops of {escape(selected)}, {phase}"
    more = f"<div>… and {len(ops) - _MOST_OPS:,} more ops</div>" if len(ops) > _MOST_OPS else ""
    shown = table(label, head, rows, _CELL, ruled=False) + more
    return scrolling(shown, f";border-top:1px solid {GRID};margin-top:6px")


def _in_and_out(op: Op) -> str:
    inputs, outputs = (list(dict.fromkeys(dtypes)) for dtypes in (op.inputs, op.outputs))
    return f"{chips(inputs)} → {chips(outputs)}"


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


def _names(dtypes: Sequence[torch.dtype]) -> str:
    return " ".join(map(short, dtypes)) or "-"


def _ending(trace: Record) -> list[str]:
    reused, casts = sum(row.reused for row in trace.modules), len(trace.casts())
    total = f"{casts} {_casts(casts)} inserted, {trace.cast_bytes():,} bytes"
    if trace.recomputed:
        total += f" ({len(trace.recomputed)} of them while a checkpoint recomputed)"
    return [f"{total}; {reused} saved by the weight cache", *trace.notes]
