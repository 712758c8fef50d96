"""What an audit gives back: faults with cause, evidence and cure; what was right, what was observed, what was not judged."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from amp_course.diagnosis.step_faults import BEHAVIOURS, FAULTS
from amp_course.kit.markup import inline_html

Evidence = dict[str, float | int | str]

# With a fault in how the gradient is made, the gradient itself cannot be called right.
_MAKES_THE_GRADIENT = {"clearing", "clipping", "loss scale", "accumulation"}
_IS_THE_GRADIENT = {"accumulation", "gradient", "shorter last group", "unequal micro-batches"}


@dataclass(frozen=True)
class Finding:
    """One fault: a stable `name`, the cause and the cure as sentences, and the numbers that show it.

    code:      the cure as a line of code, or ""
    section:   where the course teaches it, "07.3" for chapter 07, section 3
    behaviour: what it is a fault of
    spoils:    other behaviours that cannot be called right when this fault is there
    """

    name: str
    cause: str
    cure: str
    evidence: Evidence = field(default_factory=dict)
    code: str = ""
    section: str = ""
    behaviour: str = ""
    spoils: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return three lines: "still-scaled: cause.", "    Cure: … `code`", "    Measured: … (chapter 07, section 1)"."""
        lines = [f"{self.name}: {self.cause}.", f"    Cure: {_cure(self)}"]
        if self.evidence:
            lines.append(f"    Measured: {evidence_text(self.evidence).rstrip('.')}.")
        if self.section:
            lines[-1] += f" ({section_text(self.section)})"
        return "\n".join(lines)


def finding(name: str, cause: str = "", /, **evidence: float | int | str) -> Finding:
    """Make the finding of a known fault; `cause` says it more exactly. Raises KeyError for a name that `FAULTS` lacks."""
    fault = FAULTS[name]
    shown = {key.replace("micro_batch", "micro-batch").replace("_", " "): value for key, value in evidence.items()}
    return Finding(
        name, cause or fault.cause, fault.cure, shown, fault.code, fault.section, fault.behaviour, fault.spoils
    )


def evidence_text(evidence: Evidence) -> str:
    """Write what was measured on one line: {"loss scale": 1024.0} → "loss scale: 1024"."""
    return "; ".join(f"{key}: {_number(value)}" for key, value in evidence.items())


def section_text(section: str) -> str:
    """Write where the course teaches something: "07.3" → "chapter 07, section 3"."""
    chapter, _, number = section.partition(".")
    return f"chapter {chapter}, section {number}" if number else ""


@dataclass(frozen=True)
class Audit:
    """The outcome of an audit: true if something was judged and no fault was found.

    findings:     the faults, gravest first
    checked:      the names of the behaviours that were judged
    not_checked:  pairs of a behaviour and the reason why it was not judged
    observations: sentences on what is unusual and no fault
    not_put_back: pairs of a name and what became of it: what the step changed and the audit could not put back
    """

    findings: tuple[Finding, ...]
    checked: tuple[str, ...]
    not_checked: tuple[tuple[str, str], ...] = ()
    observations: tuple[str, ...] = ()
    not_put_back: tuple[tuple[str, str], ...] = ()

    def __bool__(self) -> bool:
        return not self.findings and bool(self.right) and "everything else" not in dict(self.not_checked)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the findings, in order."""
        return tuple(one.name for one in self.findings)

    @property
    def right(self) -> tuple[str, ...]:
        """The behaviours that were judged as a whole and found right, and of which no fault leaves a doubt."""
        wrong = {one.behaviour for one in self.findings}
        unsaid = wrong.union(dict(self.not_checked), *(one.spoils for one in self.findings))
        if "" in wrong:  # a fault that is none of a step's: of saving, of recomputing
            return ()
        if wrong & _MAKES_THE_GRADIENT:
            unsaid |= _IS_THE_GRADIENT
        return tuple(one for one in self.checked if one not in unsaid)

    def __repr__(self) -> str:
        lines = [f"Audit: {self._head()}", *(f"  {one}".replace("\n", "\n  ") for one in self.findings)]
        if self.findings and self.right:
            lines.append(f"  right: {', '.join(self.right)}")
        lines += [f"  observed: {one}" for one in self.observations]
        lines += [f"  not judged: {name} ({why})" for name, why in self.not_checked]
        return "\n".join([*lines, *(f"  not put back: {name} {what}" for name, what in self.not_put_back)])

    def _head(self) -> str:
        if self.findings:
            return f"{len(self.findings)} finding{'s' if len(self.findings) > 1 else ''}"
        if not self.right or (not self and "everything else" in dict(self.not_checked)):
            return "not judged"
        return f"no fault in {_counted(self.right)} ({', '.join(self.right)})"

    def _repr_html_(self) -> str:
        if self.findings:
            head = "".join(finding_html(one) for one in self.findings)
            if self.right:
                head += f"<p><b>✓ Right</b>: {html.escape(', '.join(self.right))}.</p>"
        elif self:
            head = f"<p><b>✓ No fault</b> in {_counted(self.right)}: {html.escape(', '.join(self.right))}.</p>"
        else:
            head = "<p><b>– Not judged.</b></p>"
        return (
            head
            + _details("Observed, and no fault", self.observations)
            + _details("Not judged", [f"{name}: {why}" for name, why in self.not_checked])
            + _details("Not put back", [f"{name} {what}" for name, what in self.not_put_back])
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values; `json.dumps` takes it."""
        return {
            "faults": [asdict(one) for one in self.findings],
            "right": {name: BEHAVIOURS.get(name, "") for name in self.right},
            "observed": list(self.observations),
            "not judged": [{"behaviour": name, "because": why} for name, why in self.not_checked],
            "not put back": dict(self.not_put_back),
        }

    def to_json(self) -> str:
        """Return the report as JSON."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False)


def finding_html(one: Finding) -> str:
    """Return a finding as a paragraph: its name, cause, cure and what was measured, escaped."""
    notes = [html.escape(text) for text in (evidence_text(one.evidence), section_text(one.section)) if text]
    return (
        f"<p><b>✗ {html.escape(one.name)}</b>: {inline_html(one.cause)}. <i>Cure:</i> {inline_html(_cure(one))}"
        + (f"<br><small>{'; '.join(notes)}</small>" if notes else "")
        + "</p>"
    )


def _counted(behaviours: tuple[str, ...]) -> str:
    return f"{len(behaviours)} behaviour{'s' if len(behaviours) != 1 else ''}"


def _details(title: str, lines: Iterable[str]) -> str:
    items = "".join(f"<li>{inline_html(line)}</li>" for line in lines)
    return f"<details><summary>{title}: {items.count('<li>')}</summary><ul>{items}</ul></details>" if items else ""


def _cure(one: Finding) -> str:
    if one.code:
        return f"{one.cure}: `{one.code}`"
    return one.cure if one.cure.endswith("?") else one.cure + "."


def _number(value: float | int | str) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def ordered(found: Iterable[Finding], optimizers: int = 2) -> tuple[Finding, ...]:
    """Keep the first finding of each name, in order of harm; it names all optimizers it was found for, if there are several."""
    first: dict[str, Finding] = {}
    for one in found:
        known = first.setdefault(one.name, one)
        numbers = [str(each.evidence.get("optimizer", "")) for each in (known, one)]
        if all(numbers) and numbers[1] not in numbers[0].split(" and "):
            first[one.name] = replace(known, evidence={**known.evidence, "optimizer": " and ".join(numbers)})
    if optimizers == 1:
        first = {
            name: replace(one, evidence={key: value for key, value in one.evidence.items() if key != "optimizer"})
            for name, one in first.items()
        }
    rank = {name: place for place, name in enumerate(FAULTS)}
    return tuple(sorted(first.values(), key=lambda one: rank[one.name]))
