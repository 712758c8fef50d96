"""Write what `LoopWorkbench` shows: a loop's lines against the right loop's, and its audit."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from html import escape
from typing import Literal, NamedTuple

from amp_course.diagnosis.catalogue import BEHAVIOURS
from amp_course.diagnosis.findings import finding_html
from amp_course.diagnosis.report import Report
from amp_course.kit.markup import inline_html
from amp_course.kit.panel_parts import status, view
from amp_course.kit.svg import FAINT, GRID, INK

State = Literal["right", "wrong", "not judged"]
SIGNS: dict[State, str] = {"right": "✓", "wrong": "✗", "not judged": "–"}


class Line(NamedTuple):
    """A line of two compared loops: "+" marks one of this loop only, "−" of the right loop only."""

    mark: Literal["", "+", "−"]
    text: str


class Judgement(NamedTuple):
    """What an audit says of a behaviour; word: what holds, the faults, or why it is not judged."""

    state: State
    behaviour: str
    word: str


def marked_lines(source: str, right: str) -> list[Line]:
    """Compare a loop with the right one; the lines that are not marked "−" make up `source`.

    Example: ("a\\nc", "a\\nb\\nc") → [("", "a"), ("−", "b"), ("", "c")]
    """
    here, there = source.splitlines(), right.splitlines()
    lines: list[Line] = []
    matcher = SequenceMatcher(None, there, here, autojunk=False)
    for tag, there_from, there_to, here_from, here_to in matcher.get_opcodes():
        if tag != "equal":
            lines += [Line("−", text) for text in there[there_from:there_to]]
        mark: Literal["", "+"] = "" if tag == "equal" else "+"
        lines += [Line(mark, text) for text in here[here_from:here_to]]
    return lines


def judgements(audit: Report) -> list[Judgement]:
    """Return what an audit says of each behaviour, in the order in which they are judged."""
    reasons = dict(audit.not_checked)
    # a fault may hide what comes after it, so those behaviours cannot be judged yet
    otherwise = "fix the faults first" if audit.findings else "was not asked for"
    found: list[Judgement] = []
    for behaviour, holds in BEHAVIOURS.items():
        faults = [finding.name for finding in audit.findings if finding.behaviour == behaviour]
        if faults:
            found.append(Judgement("wrong", behaviour, ", ".join(faults)))
        elif behaviour in audit.right:
            found.append(Judgement("right", behaviour, holds))
        else:
            found.append(Judgement("not judged", behaviour, reasons.get(behaviour, otherwise)))
    return found


_CODE = "font-family:var(--jp-code-font-family, monospace);font-size:12px;line-height:1.5"
# the edge of a line that only this loop has, and of one that only the right loop has
_ADDED, _REMOVED = ("#D55E00", "#0072B2")
_STYLES: dict[State, str] = {
    "right": "border-left:4px solid #009E73",
    "wrong": f"border-left:4px solid {_ADDED};font-weight:bold",
    "not judged": f"border-left:4px dotted {FAINT};color:{FAINT}",
}


def workbench_view(lines: Sequence[Line], judged: Sequence[Judgement], audit: Report) -> str:
    """Return the panel's HTML: a verdict, the loop next to the behaviours, and the findings."""
    return view(
        status(headline(judged, audit), "margin-bottom:6px"),
        '<div style="display:flex;flex-wrap:wrap;gap:8px 20px;align-items:flex-start">'
        f"{_loop(lines)}{_behaviours(judged)}</div>",
        *map(finding_html, audit.findings),
    )


def headline(judged: Sequence[Judgement], audit: Report) -> str:
    """Return the verdict: "✗ Fault: sum-not-mean. Behaviours: 8 right, 5 not judged."."""
    states = [one.state for one in judged]
    right, rest = states.count("right"), f"{states.count('not judged')} not judged"
    if not audit.names:
        return f"<b>✓ No fault</b> in {right} behaviours; {rest}."
    fault = "Fault" if len(audit.names) == 1 else f"{len(audit.names)} faults"
    names = escape(", ".join(audit.names))
    return f"<b>✗ {fault}: {names}.</b> Behaviours: {right} right, {rest}."


def _loop(lines: Sequence[Line]) -> str:
    legend = "the right loop"
    if any(line.mark for line in lines):
        legend = "<b>+</b> only in this loop &nbsp; <b>−</b> only in the right one, not executed"
    style = f"{_CODE};color:{INK};background:transparent;margin:0;padding:0;overflow:visible"
    return (
        '<div style="flex:3 1 27em;min-width:0;max-width:100%;overflow-x:auto"><pre role="group" '
        f'aria-label="the loop that runs" style="{style}">{"".join(map(_row, lines))}</pre>'
        f'<div style="color:{FAINT}">{legend}</div></div>'
    )


def _row(line: Line) -> str:
    text = escape(line.text)
    if not line.mark:
        return f'<div style="padding-left:5px"><span aria-hidden="true">  </span>{text}</div>'
    colour, inner = _ADDED, f'<ins style="text-decoration:none">{text}</ins>'
    if line.mark == "−":  # left out when the loop is copied
        code = text.lstrip()
        indent = text[: len(text) - len(code)]
        colour = _REMOVED
        inner = f'{indent}<del style="user-select:none;color:{FAINT}">{code}</del>'
    style = f"border-left:5px solid {colour};background:{colour}2e"
    return f'<div style="{style}"><b style="user-select:none">{line.mark}</b> {inner}</div>'


def _behaviours(judged: Sequence[Judgement]) -> str:
    rows = "".join(
        f'<li style="{_STYLES[state]};padding-left:6px;margin:1px 0;line-height:1.4">'
        f"<b>{SIGNS[state]} {escape(behaviour)}</b>: {inline_html(word)}</li>"
        for state, behaviour, word in judged
    )
    return (
        '<div style="flex:2 1 19em;min-width:0"><ul aria-label="behaviours" '
        f'style="list-style:none;margin:0;padding:0 0 0 8px;border-left:1px solid {GRID}">'
        f"{rows}</ul></div>"
    )
