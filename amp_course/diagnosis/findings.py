"""A finding: a fault, the fix, and the numbers that show it; as text and as HTML."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from amp_course.kit.markup import inline_html

Evidence = dict[str, float | int | str]
Grade = Literal["fault", "advice"]


@dataclass(frozen=True)
class Finding:
    """A fault that was found: a stable `name`, the cause, the fix, and the numbers that show it.

    cause:     what is wrong, without a full stop at its end
    code:      the fix as a line of code, or ""; "{device}" in it stands for the training's device
    section:   where the course teaches it, "07.3" for chapter 07, section 3
    behaviour: what it is a fault of
    hides:     other behaviours that cannot be called right when this fault is there
    place:     a line of the user's code, "line 31 of train.py, `loss.backward()`", or ""
    """

    name: str
    cause: str
    fix: str
    evidence: Evidence = field(default_factory=dict)
    code: str = ""
    section: str = ""
    behaviour: str = ""
    hides: tuple[str, ...] = ()
    place: str = ""
    grade: Grade = "fault"

    def on(self, device: str) -> Finding:
        """Return it with the fix for a training on this kind of device, "cuda"."""
        fix, code = (text.replace("{device}", device) for text in (self.fix, self.code))
        return replace(self, fix=fix, code=code)

    def lines(self) -> list[str]:
        """Return "still-scaled: ….", "Where: …", "Fix: …: `code`", "Measured: …. (chapter 07)"."""
        lines = [f"{self.name}: {self.cause}."]
        if self.place:
            lines.append(f"Where: {self.place}")
        lines.append(f"Fix: {fix_text(self)}")
        if self.evidence:
            lines.append(f"Measured: {evidence_text(self.evidence).rstrip('.')}.")
        if self.section:
            lines[-1] += f" ({section_text(self.section)})"
        return lines

    def __str__(self) -> str:
        return "\n    ".join(self.lines())


Findings = Iterator[Finding]


def finding_of(data: Mapping[str, Any]) -> Finding:
    """Make a finding of what `dataclasses.asdict` made of it, even after a way through JSON."""
    return Finding(**{**data, "hides": tuple(data["hides"])})


def fix_text(one: Finding) -> str:
    """Write the fix: "Unscale before you clip: `scaler.unscale_(optimizer)`"."""
    if one.code:
        return f"{one.fix}: `{one.code}`"
    return one.fix if one.fix.endswith("?") else one.fix + "."


def evidence_text(evidence: Evidence) -> str:
    """Write evidence on one line: {"loss scale": 1024.0} → "loss scale: 1024"."""
    return "; ".join(f"{key}: {_value(key, value)}" for key, value in evidence.items())


def _value(key: str, value: float | int | str) -> str:
    return ordinal(value) if key == "optimizer" and isinstance(value, int) else _number(value)


def ordinal(index: int) -> str:
    """Write a place that is counted from 0: 1 → "the second"."""
    words = ("the first", "the second", "the third")
    return words[index] if index < len(words) else f"number {index + 1}"


def section_text(section: str) -> str:
    """Write where the course teaches something: "07.3" → "chapter 07, section 3"."""
    chapter, _, number = section.partition(".")
    return f"chapter {chapter}, section {number}" if number else ""


def finding_html(one: Finding, sign: str = "✗") -> str:
    """Return a finding as HTML, escaped, with a table of its evidence."""
    place = f"<i>Where:</i> {inline_html(one.place)}<br>" if one.place else ""
    section = section_text(one.section)
    where = f" <small>({section})</small>" if section else ""
    return (
        f"<p><b>{sign} {html.escape(one.name)}</b>: {inline_html(one.cause)}.<br>{place}"
        f"<i>Fix:</i> {inline_html(fix_text(one))}{where}</p>"
        + pairs_html((key, _value(key, value)) for key, value in one.evidence.items())
    )


def pairs_html(pairs: Iterable[tuple[str, str]]) -> str:
    """Return names and texts as a table of two columns; "" if there are none."""
    cell = '<td style="text-align:left">'
    rows = "".join(
        f"<tr>{cell}{html.escape(key)}</td>{cell}{inline_html(text)}</td></tr>"
        for key, text in pairs
    )
    return f"<table>{rows}</table>" if rows else ""


def _number(value: float | int | str) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.0f}" if value.is_integer() and abs(value) < 1e7 else f"{value:.4g}"
