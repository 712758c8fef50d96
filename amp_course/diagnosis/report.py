"""The one report of the audit, the doctor and the clinic, as text, HTML and JSON."""

from __future__ import annotations

import html
import json
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from amp_course.diagnosis.catalogue import BEHAVIOURS, TRAINING, causes_of, without_consequences
from amp_course.diagnosis.findings import Finding, evidence_text, finding_html, pairs_html
from amp_course.kit.markup import inline_html, plain_text

State = Literal["clean", "fault", "could not run", "too little seen", "not judged"]
# With a fault in how the gradient is made, the gradient itself cannot be called right.
_MAKES_THE_GRADIENT = {"clearing", "clipping", "loss scale", "accumulation"}
_IS_THE_GRADIENT = {"accumulation", "gradient", "shorter last group", "unequal micro-batches"}
# With a fault of one of these, nothing can be called right.
_OF_ALL = {"", "checkpoint", "recomputation"}
_WIDTH = 100
_PAGE = (
    "<!doctype html><html lang='en'><head><meta charset='utf-8'><meta name='viewport' "
    "content='width=device-width'><title>{title}</title><style>:root{{color-scheme:light "
    "dark}}body{{font:16px/1.5 sans-serif;max-width:46rem;margin:2rem auto;padding:0 "
    "1rem;color:CanvasText;background:Canvas}}h1{{font-size:1.4rem}}code{{background:color-mix(in "
    "srgb,CanvasText 8%,Canvas);padding:0 "
    ".2em;overflow-wrap:anywhere}}pre{{white-space:pre-wrap}}table{{border-collapse:collapse;"
    "font-size:.9em}}td{{padding:.1rem .8rem .1rem 0;vertical-align:top}}"
    "</style></head><body><h1>{title}</h1>{body}</body></html>"
)


@dataclass(frozen=True)
class Report:
    """What was found in a training or a step. True if something was judged, and without a fault.

    findings:     the faults, the most harmful first
    checked:      the names of the behaviours that were judged
    not_checked:  pairs (what was not judged, why)
    observations: sentences about what is unusual and no fault
    not_put_back: pairs (name, what became of it) of what changed and could not be restored
    subject:      what was examined: "train.py", "the step"
    consequences: findings that follow from one of the faults; they are not counted
    advice:       what costs time or may do harm later, and is no fault
    facts:        pairs (name, text): how many updates, what ran in 16 bits, the loss scale
    too_little:   why too little was seen to judge, and what would be enough; "" if it was enough
    problem:      why it could not be examined, and what to do; "" if it could
    output:       the last lines that a script printed, if it ended with an error
    device:       the kind of device that it trains on, for the fixes
    """

    findings: tuple[Finding, ...] = ()
    checked: tuple[str, ...] = ()
    not_checked: tuple[tuple[str, str], ...] = ()
    observations: tuple[str, ...] = ()
    not_put_back: tuple[tuple[str, str], ...] = ()
    subject: str = "the step"
    consequences: tuple[Finding, ...] = ()
    advice: tuple[Finding, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    too_little: str = ""
    problem: str = ""
    output: tuple[str, ...] = ()
    device: str = field(default="cuda", repr=False)

    def __post_init__(self) -> None:
        found = [one.on(self.device) for one in (*self.findings, *self.consequences)]
        faults = without_consequences(found)
        object.__setattr__(self, "findings", faults)
        object.__setattr__(self, "consequences", tuple(one for one in found if one not in faults))
        object.__setattr__(self, "advice", tuple(one.on(self.device) for one in self.advice))

    @property
    def state(self) -> State:
        """The verdict in a word or three."""
        if self.findings:
            return "fault"
        if self.problem:
            return "could not run"
        if self.too_little:
            return "too little seen"
        judged = self.right and "everything else" not in dict(self.not_checked)
        return "clean" if judged else "not judged"

    @property
    def exit_code(self) -> int:
        """0 if it is clean, 1 for a fault, 2 if it could not be judged."""
        return {"clean": 0, "fault": 1}.get(self.state, 2)

    def __bool__(self) -> bool:
        return self.state == "clean"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the faults, in order."""
        return tuple(one.name for one in self.findings)

    @property
    def advised(self) -> tuple[str, ...]:
        """The names of the advice, in order."""
        return tuple(one.name for one in self.advice)

    @property
    def right(self) -> tuple[str, ...]:
        """The behaviours that were judged, and that no fault leaves in doubt."""
        found = (*self.findings, *self.consequences)
        wrong = {one.behaviour for one in found}
        doubtful = wrong.union(dict(self.not_checked), *(one.hides for one in found))
        if wrong & _OF_ALL:
            return ()
        if wrong & _MAKES_THE_GRADIENT:
            doubtful |= _IS_THE_GRADIENT
        if "values" in wrong:
            doubtful.add("weights")
        if "overflow" in wrong:  # a step with inf may have been taken
            doubtful.add("values")
        return tuple(one for one in self.checked if one not in doubtful)

    @property
    def head(self) -> str:
        """The verdict in a line."""
        capital = "The" + self.subject[3:] if self.subject.startswith("the ") else self.subject
        return {
            "fault": f"{count(len(self.findings), 'fault')} found in {self.subject}",
            "could not run": f"{capital} could not be examined",
            "too little seen": f"Too little was seen of {self.subject} to judge it",
            "not judged": f"{capital} was not judged",
            "clean": f"No fault found in {self.subject}",
        }[self.state]

    def following(self, one: Finding) -> tuple[Finding, ...]:
        """Return the consequences whose first cause is this fault."""
        first = [(other, causes_of(other, self.findings)[:1]) for other in self.consequences]
        return tuple(other for other, cause in first if cause == [one.name])

    def _below(self, one: Finding) -> Iterator[str]:
        for other in self.following(one):
            shown = f" ({evidence_text(other.evidence)})" if other.evidence else ""
            yield f"Follows from it: {other.name}{shown}"

    def _lists(self) -> list[tuple[str, list[str]]]:
        lists = [
            ("Checked, and right", [", ".join(self.right)] if self.right else []),
            ("Observed, no fault", list(self.observations)),
            ("Not judged", [f"{name}: {why}" for name, why in self.not_checked]),
            ("Not put back", [f"{name} {what}" for name, what in self.not_put_back]),
        ]
        return [(title, texts) for title, texts in lists if texts]

    def __str__(self) -> str:
        lines = [self.head]
        for text in (self.problem, self.too_little):
            lines += _wrapped(text, "  ", "  ")
        for number, one in enumerate(self.findings, 1):
            lines += ["", *_finding_lines(one, f"{number}. ")]
            lines += [line for text in self._below(one) for line in _wrapped(text)]
        if self.advice:
            lines += ["", "Advice (not counted as faults):"]
            lines += [line for one in self.advice for line in _finding_lines(one, "-  ")]
        if self.facts:
            width = max(len(name) for name, _ in self.facts)
            lines += ["", "Seen:", *(f"   {name:<{width}}  {text}" for name, text in self.facts)]
        for title, texts in self._lists():
            lines += ["", f"{title}:", *(line for text in texts for line in _wrapped(text))]
        if self.output:
            lines += ["", "The last lines it printed:", *(f"   | {line}" for line in self.output)]
        return plain_text("\n".join(lines))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        sign = {"clean": "✓ ", "fault": ""}.get(self.state, "– ")
        return f"<p><b>{sign}{html.escape(self.head)}.</b></p>{self._body()}"

    def _body(self) -> str:
        parts = [f"<p>{inline_html(text)}</p>" for text in (self.problem, self.too_little) if text]
        for number, one in enumerate(self.findings, 1):
            parts.append(finding_html(one, f"✗ {number}."))
            parts += [f"<p>{inline_html(text)}</p>" for text in self._below(one)]
        if self.advice:
            parts.append("<p><b>Advice</b> (not counted as faults):</p>")
            parts += [finding_html(one, "→") for one in self.advice]
        if self.facts:
            parts.append(f"<p><b>Seen</b></p>{pairs_html(self.facts)}")
        for title, texts in self._lists():
            items = "".join(f"<li>{inline_html(text)}</li>" for text in texts)
            parts.append(f"<p><b>{title}</b></p><ul>{items}</ul>")
        if self.output:
            printed = html.escape("\n".join(self.output))
            parts.append(f"<p><b>The last lines it printed</b></p><pre>{printed}</pre>")
        return "".join(parts)

    def to_html(self) -> str:
        """Return a complete page, which needs no other file."""
        return _PAGE.format(title=html.escape(self.head), body=self._body())

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values; `json.dumps` takes it."""
        holds = BEHAVIOURS | TRAINING
        return {
            "subject": self.subject,
            "state": self.state,
            "problem": self.problem,
            "too little seen": self.too_little,
            "faults": [asdict(one) for one in self.findings],
            "consequences": [asdict(one) for one in self.consequences],
            "advice": [asdict(one) for one in self.advice],
            "seen": dict(self.facts),
            "observed": list(self.observations),
            "right": {name: holds.get(name, "") for name in self.right},
            "not judged": [{"what": name, "because": why} for name, why in self.not_checked],
            "not put back": dict(self.not_put_back),
            "output": list(self.output),
        }

    def to_json(self) -> str:
        """Return the report as JSON."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False)


def _finding_lines(one: Finding, first: str) -> list[str]:
    head, *rest = one.lines()
    return [*_wrapped(head, first, "   "), *(part for line in rest for part in _wrapped(line))]


def _wrapped(text: str, first: str = "   ", rest: str = "      ") -> list[str]:
    """Break a text into lines that fit a terminal."""
    wrapper = textwrap.TextWrapper(
        _WIDTH, first, rest, break_long_words=False, break_on_hyphens=False
    )
    return wrapper.wrap(text)


def count(number: int, what: str) -> str:
    """Write a number of things: (1, "update") → "1 update"; (3, "update") → "3 updates"."""
    return f"{number:,} {what}{'s' * (number != 1)}"


def listed(words: Iterable[str]) -> str:
    """Write a list: "a, b and c"."""
    *most, last = list(words) or [""]
    return f"{', '.join(most)} and {last}" if most else last
