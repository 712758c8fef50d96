"""Lay out and draw what `LoopWorkbench` shows: the loop's lines against the right loop's,
its audit behaviour by behaviour.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from html import escape
from typing import Literal, NamedTuple

from amp_course.diagnosis.catalogue import BEHAVIOURS
from amp_course.diagnosis.findings import finding_html
from amp_course.diagnosis.report import Report
from amp_course.kit.markup import inline_html
from amp_course.kit.svg import FAINT, GRID, INK

State = Literal["right", "wrong", "not judged"]
SIGNS: dict[State, str] = {"right": "✓", "wrong": "✗", "not judged": "–"}


class Line(NamedTuple):
    """A line of two compared loops: "+" marks one of this loop only, "−" of the right loop only."""

    mark: Literal["", "+", "−"]
    text: str


class Judgement(NamedTuple):
    """What an audit says of one behaviour; `word` says what holds, or names the faults, or why
    nothing is said.
    """

    state: State
    behaviour: str
    word: str


def marked_lines(source: str, right: str) -> list[Line]:
    """Compare a loop with the right one, line by line; without the "−" lines the result is
    `source`.

    Example: ("a\\nc", "a\\nb\\nc") → [("", "a"), ("−", "b"), ("", "c")]
    """
    return list(_compared(source.splitlines(), right.splitlines()))


def _compared(here: list[str], there: list[str]) -> Iterator[Line]:
    for tag, there_from, there_to, from_, to in SequenceMatcher(
        None, there, here, autojunk=False
    ).get_opcodes():
        if tag == "equal":
            yield from (Line("", text) for text in here[from_:to])
        else:
            yield from (Line("−", text) for text in there[there_from:there_to])
            yield from (Line("+", text) for text in here[from_:to])


def judgements(audit: Report) -> list[Judgement]:
    """Return what an audit says of each behaviour, in the order in which they are judged."""
    reasons = dict(audit.not_checked)
    # A fault may hide what comes after it: those behaviours cannot be judged yet.
    otherwise = "fix the faults first" if audit.findings else "was not asked for"
    found: list[Judgement] = []
    for behaviour, holds in BEHAVIOURS.items():
        faults = [one.name for one in audit.findings if one.behaviour == behaviour]
        if faults:
            found.append(Judgement("wrong", behaviour, ", ".join(faults)))
        elif behaviour in audit.right:
            found.append(Judgement("right", behaviour, holds))
        else:
            found.append(Judgement("not judged", behaviour, reasons.get(behaviour, otherwise)))
    return found


_CODE = "font-family:var(--jp-code-font-family, monospace);font-size:12px;line-height:1.5"
# the edge of a line that only this loop has, and of one that only the right loop has
_HERE, _GONE = ("#D55E00", "#0072B2")
_LOOKS: dict[State, str] = {
    "right": "border-left:4px solid #009E73",
    "wrong": f"border-left:4px solid {_HERE};font-weight:bold",
    "not judged": f"border-left:4px dotted {FAINT};color:{FAINT}",
}


def workbench_view(lines: Sequence[Line], judged: Sequence[Judgement], audit: Report) -> str:
    """Return the panel's HTML: the verdict in a sentence, the loop next to the behaviours,
    and the findings below.
    """
    return (
        f'<div style="color:{INK};line-height:1.5"><div role="status" aria-live="polite" '
        f'style="margin-bottom:6px">{headline(judged, audit)}</div>'
        '<div style="display:flex;flex-wrap:wrap;gap:8px 20px;align-items:flex-start">'
        f"{_loop(lines)}{_behaviours(judged)}</div>"
        f"{''.join(map(finding_html, audit.findings))}</div>"
    )


def headline(judged: Sequence[Judgement], audit: Report) -> str:
    """Say the verdict in a sentence: "✗ Fault: clipped-while-scaled. Behaviours: 8 right, 5 not
    judged."
    """
    count = {state: sum(one.state == state for one in judged) for state in SIGNS}
    rest = f"{count['not judged']} not judged"
    if not audit.names:
        return f"<b>✓ No fault</b> in {count['right']} behaviours; {rest}."
    fault = "Fault" if len(audit.names) == 1 else f"{len(audit.names)} faults"
    return (
        f"<b>✗ {fault}: {escape(', '.join(audit.names))}.</b> Behaviours: {count['right']} "
        f"right, {rest}."
    )


def _loop(lines: Sequence[Line]) -> str:
    legend = "the right loop"
    if any(line.mark for line in lines):
        legend = "<b>+</b> only in this loop &nbsp; <b>−</b> only in the right one, not executed"
    look = f"{_CODE};color:{INK};background:transparent;margin:0;padding:0;overflow:visible"
    return (
        '<div style="flex:3 1 27em;min-width:0;max-width:100%;overflow-x:auto"><pre role="group" '
        f'aria-label="the loop that runs" style="{look}">{"".join(map(_row, lines))}</pre>'
        f'<div style="color:{FAINT}">{legend}</div></div>'
    )


def _row(line: Line) -> str:
    mark, text = line
    written = escape(text)
    if not mark:
        return f'<div style="padding-left:5px"><span aria-hidden="true">  </span>{written}</div>'
    colour = _HERE if mark == "+" else _GONE
    look = f"border-left:5px solid {colour};background:{colour}2e"
    inner = f'<ins style="text-decoration:none">{written}</ins>'
    if mark == "−":  # not a part of what one copies
        code = written.lstrip()
        indent = written[: len(written) - len(code)]
        inner = f'{indent}<del style="user-select:none;color:{FAINT}">{code}</del>'
    return f'<div style="{look}"><b style="user-select:none">{mark}</b> {inner}</div>'


def _behaviours(judged: Sequence[Judgement]) -> str:
    rows = "".join(
        f'<li style="{_LOOKS[state]};padding-left:6px;margin:1px 0;line-height:1.4">'
        f"<b>{SIGNS[state]} {escape(behaviour)}</b>: {inline_html(word)}</li>"
        for state, behaviour, word in judged
    )
    return (
        f'<div style="flex:2 1 19em;min-width:0"><ul aria-label="behaviours" '
        f'style="list-style:none;margin:0;padding:0 0 0 8px;border-left:1px solid '
        f'{GRID}">{rows}</ul></div>'
    )
