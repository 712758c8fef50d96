"""What an audit gives back: findings, each with its cause, its cure and what was measured. Judges nothing."""

from __future__ import annotations

import html
from collections.abc import Iterable
from dataclasses import dataclass, field

from amp_course.kit.markup import inline_html
from amp_course.patterns.faults import FAULTS

Evidence = dict[str, float | int | str]


@dataclass(frozen=True)
class Finding:
    """One fault: a stable `name`, the cause and the cure as sentences, and the numbers that show it."""

    name: str
    cause: str
    cure: str
    evidence: Evidence = field(default_factory=dict)

    def __str__(self) -> str:
        """Return "still-scaled: cause. Cure (measured: …)"."""
        shown = f" ({evidence_text(self.evidence)})" if self.evidence else ""
        return f"{self.name}: {self.cause}. {_ended(self.cure)}{shown}"


def finding(name: str, **evidence: float | int | str) -> Finding:
    """Make the finding of a known fault. Raises KeyError for a name that `FAULTS` lacks."""
    cause, cure = FAULTS[name]
    return Finding(name, cause, cure, {key.replace("_", " "): value for key, value in evidence.items()})


def evidence_text(evidence: Evidence) -> str:
    """Write what was measured on one line: {"loss scale": 1024.0} → "loss scale: 1024"."""
    return "; ".join(f"{key}: {_number(value)}" for key, value in evidence.items())


@dataclass(frozen=True)
class Audit:
    """The outcome of an audit: true if nothing was found.

    findings:    the faults, gravest first
    checked:     the names of the behaviours that were judged
    not_checked: pairs of a behaviour and the reason why it was not judged
    """

    findings: tuple[Finding, ...]
    checked: tuple[str, ...]
    not_checked: tuple[tuple[str, str], ...] = ()

    def __bool__(self) -> bool:
        return not self.findings

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the findings, in order."""
        return tuple(one.name for one in self.findings)

    def __repr__(self) -> str:
        if self:
            head = f"Audit: no fault in {len(self.checked)} behaviours ({', '.join(self.checked)})"
        else:
            head = f"Audit: {len(self.findings)} finding{'s' if len(self.findings) > 1 else ''}"
        lines = [head, *(f"  {one}" for one in self.findings)]
        return "\n".join([*lines, *(f"  not checked: {name} ({why})" for name, why in self.not_checked)])

    def _repr_html_(self) -> str:
        left = "".join(f"<li>{html.escape(f'{name}: {why}')}</li>" for name, why in self.not_checked)
        rest = (
            f"<details><summary>Not checked: {len(self.not_checked)}</summary><ul>{left}</ul></details>" if left else ""
        )
        if self:
            behaviours = html.escape(", ".join(self.checked))
            return f"<p><b>✓ No fault</b> in {len(self.checked)} behaviours: {behaviours}.</p>{rest}"
        return "".join(finding_html(one) for one in self.findings) + rest


def finding_html(one: Finding) -> str:
    """Return a finding as a paragraph: its name, cause, cure and what was measured, escaped."""
    measured = html.escape(evidence_text(one.evidence))
    return (
        f"<p><b>✗ {html.escape(one.name)}</b>: {inline_html(one.cause)}. <i>Cure:</i> {inline_html(_ended(one.cure))}"
        + (f"<br><small>{measured}</small>" if measured else "")
        + "</p>"
    )


def _ended(sentence: str) -> str:
    return sentence if sentence.endswith("?") else sentence + "."


def _number(value: float | int | str) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def unique(found: Iterable[Finding]) -> tuple[Finding, ...]:
    """Keep the first finding of each name."""
    first: dict[str, Finding] = {}
    for one in found:
        first.setdefault(one.name, one)
    return tuple(first.values())
