"""Draw what `LoopWorkbench` shows, as HTML: the loop's text with its changed lines marked, and what its audit found."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from amp_course.kit.svg import FAINT, GRID, INK
from amp_course.patterns.findings import Audit, finding_html
from amp_course.patterns.verdict import SIGNS, Judgement, Line, State

_CODE = "font-family:var(--jp-code-font-family, monospace);font-size:12px;line-height:1.5"
_HERE, _GONE = (
    "#D55E00",
    "#0072B2",
)  # the edge of a line that only this loop has, and of one that only the right loop has
_LOOKS: dict[State, str] = {
    "right": "border-left:4px solid #009E73",
    "wrong": f"border-left:4px solid {_HERE};font-weight:bold",
    "not judged": f"border-left:4px dotted {FAINT};color:{FAINT}",
}


def workbench_view(lines: Sequence[Line], judged: Sequence[Judgement], audit: Audit) -> str:
    """Return the panel's HTML: the verdict in a sentence, the loop beside the behaviours, and the findings under them."""
    return (
        f'<div style="color:{INK};line-height:1.5">'
        f'<div role="status" aria-live="polite" style="margin-bottom:6px">{headline(judged, audit)}</div>'
        '<div style="display:flex;flex-wrap:wrap;gap:8px 20px;align-items:flex-start">'
        f"{_loop(lines)}{_behaviours(judged)}</div>"
        f"{''.join(finding_html(one) for one in audit.findings)}</div>"
    )


def headline(judged: Sequence[Judgement], audit: Audit) -> str:
    """Say the verdict in a sentence: "✗ Fault: clipped-while-scaled. Behaviours: 8 right, 5 not judged." """
    count = {state: sum(one.state == state for one in judged) for state in SIGNS}
    rest = f"{count['not judged']} not judged"
    if not audit.names:
        return f"<b>✓ No fault</b> in {count['right']} behaviours; {rest}."
    fault = "Fault" if len(audit.names) == 1 else f"{len(audit.names)} faults"
    return f"<b>✗ {fault}: {escape(', '.join(audit.names))}.</b> Behaviours: {count['right']} right, {rest}."


def _loop(lines: Sequence[Line]) -> str:
    changed = any(mark for mark, _ in lines)
    legend = (
        f'<div style="color:{FAINT}"><b>+</b> only in this loop &nbsp; <b>−</b> only in the right one, not executed</div>'
        if changed
        else f'<div style="color:{FAINT}">the right loop</div>'
    )
    rows = "".join(map(_row, lines))
    return (
        '<div style="flex:3 1 27em;min-width:0;max-width:100%;overflow-x:auto">'
        f'<pre aria-label="the loop that runs" style="{_CODE};color:{INK};background:transparent;margin:0;padding:0">{rows}</pre>'
        f"{legend}</div>"
    )


def _row(line: Line) -> str:
    mark, text = line
    written = escape(text)
    if not mark:
        return f'<div style="padding-left:5px"><span aria-hidden="true">  </span>{written}</div>'
    colour = _HERE if mark == "+" else _GONE
    look = f"border-left:5px solid {colour};background:{colour}2e"
    if mark == "−":  # not a part of what one copies
        code = escape(text.lstrip())
        inner = f'{" " * (len(text) - len(text.lstrip()))}<del style="user-select:none;color:{FAINT}">{code}</del>'
    else:
        inner = f'<ins style="text-decoration:none">{written}</ins>'
    return f'<div style="{look}"><b style="user-select:none">{mark}</b> {inner}</div>'


def _behaviours(judged: Sequence[Judgement]) -> str:
    rows = "".join(
        f'<li style="{_LOOKS[state]};padding-left:6px;margin:1px 0;line-height:1.4">'
        f"<b>{SIGNS[state]} {escape(behaviour)}</b>: {escape(word)}</li>"
        for state, behaviour, word in judged
    )
    return (
        f'<div style="flex:2 1 19em;min-width:0"><ul aria-label="behaviours" style="list-style:none;margin:0;padding:0 0 0 8px;'
        f'border-left:1px solid {GRID}">{rows}</ul></div>'
    )
