"""The doctor's page: what was found, in order of harm, with cause, evidence, cure and chapter; as text, HTML and JSON."""

from __future__ import annotations

import html
import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from amp_course.diagnosis.findings import Finding, finding_html
from amp_course.kit.markup import inline_html, plain_text

State = Literal["clean", "fault", "could not run", "too little seen"]
_WIDTH = 100
EXIT_CODES: dict[State, int] = {"clean": 0, "fault": 1, "could not run": 2, "too little seen": 2}
_PAGE = (
    "<!doctype html><html lang='en'><head><meta charset='utf-8'><meta name='viewport' content='width=device-width'>"
    "<title>{title}</title><style>:root{{color-scheme:light dark}}body{{font:16px/1.5 sans-serif;max-width:46rem;"
    "margin:2rem auto;padding:0 1rem;color:CanvasText;background:Canvas}}h1{{font-size:1.4rem}}"
    "code{{background:color-mix(in srgb,CanvasText 8%,Canvas);padding:0 .2em}}pre{{white-space:pre-wrap}}"
    "table{{border-collapse:collapse}}td{{padding:.1rem .8rem .1rem 0;vertical-align:top}}"
    "small{{color:color-mix(in srgb,CanvasText 75%,Canvas)}}</style></head><body><h1>{title}</h1>{body}</body></html>"
)


@dataclass(frozen=True)
class Diagnosis:
    """What the doctor says of a training: true if it was examined and no fault was found.

    subject:  what was examined, "train.py --epochs 1" or "the step"
    findings: the faults, gravest first
    advice:   what costs time or may do harm later, and is no fault
    facts:    what was seen, name → text: how many updates, what ran in 16 bits, the loss scale
    observed: sentences on what is unusual and no fault
    not_judged: pairs of what was not judged, and why
    problem:  why it could not be examined, with the cure; "" if it could
    output:   the last lines that a script printed, where it ended with an error
    too_little: how much was seen, where that is too little to call it clean, and what would be enough; "" where it is not
    """

    subject: str
    findings: tuple[Finding, ...] = ()
    advice: tuple[Finding, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    observed: tuple[str, ...] = ()
    not_judged: tuple[tuple[str, str], ...] = ()
    problem: str = ""
    output: tuple[str, ...] = ()
    too_little: str = ""

    @property
    def state(self) -> State:
        """Whether it is clean, has a fault, could not run, or ended before there was enough to see."""
        if self.findings:
            return "fault"
        return "could not run" if self.problem else "too little seen" if self.too_little else "clean"

    @property
    def exit_code(self) -> int:
        """0 if it is clean, 1 for a fault, 2 if it could not run or too little was seen."""
        return EXIT_CODES[self.state]

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
    def head(self) -> str:
        """The verdict in a line."""
        count = len(self.findings)
        if count:
            return f"{count} fault{'s' * (count > 1)} found in {self.subject}"
        if self.problem:
            return f"{self.subject} could not be examined"
        return f"Too little seen of {self.subject}" if self.too_little else f"No fault found in {self.subject}"

    def __str__(self) -> str:
        lines = [self.head, *_wrapped(self.problem or ("" if self.findings else self.too_little), "  ")]
        for number, one in enumerate(self.findings, 1):
            first, *rest = str(one).splitlines()
            lines += ["", *_wrapped(f"{number}. {first}", "", "   "), *_lines(rest)]
        if self.advice:
            lines += ["", "Advice (not counted as faults):"]
            for one in self.advice:
                first, *rest = str(one).splitlines()
                lines += [*_wrapped(first, "-  ", "   "), *_lines(rest)]
        if self.facts:
            width = max(len(name) for name, _ in self.facts)
            lines += ["", "What was seen:", *(f"   {name:<{width}}  {text}" for name, text in self.facts)]
        for text in self.observed:
            lines += _wrapped(text, "   ")
        if self.not_judged:
            lines += ["", "Not judged:"]
            for name, why in self.not_judged:
                lines += _wrapped(f"{name}: {why}", "   ", "      ")
        if self.output:
            lines += ["", "The last that it printed:", *(f"   | {line}" for line in self.output)]
        return plain_text("\n".join(lines))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"<p><b>{html.escape(self.head)}.</b></p>{self._body()}"

    def _body(self) -> str:
        said = self.problem or ("" if self.findings else self.too_little)
        parts = [f"<p>{inline_html(said)}</p>"] if said else []
        parts += [_finding_html(one) for one in self.findings]
        if self.advice:
            parts += [
                "<p><b>Advice</b> (not counted as faults):</p>",
                *(_advice_html(one) for one in self.advice),
            ]
        if self.facts:
            cell = '<td style="text-align:left">'
            rows = "".join(
                f"<tr>{cell}{html.escape(name)}</td>{cell}{inline_html(text)}</td></tr>" for name, text in self.facts
            )
            parts += ["<p><b>What was seen</b></p>", f"<table>{rows}</table>"]
        parts += [f"<p>{inline_html(one)}</p>" for one in self.observed]
        if self.not_judged:
            items = "".join(f"<li>{inline_html(f'{name}: {why}')}</li>" for name, why in self.not_judged)
            parts += [f"<p><b>Not judged</b></p><ul>{items}</ul>"]
        if self.output:
            parts += [f"<p><b>The last it printed</b></p><pre>{html.escape(chr(10).join(self.output))}</pre>"]
        return "".join(parts)

    def to_html(self) -> str:
        """Return a whole page, which needs no other file."""
        return _PAGE.format(title=html.escape(self.head), body=self._body())

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values; `json.dumps` takes it."""
        return {
            "subject": self.subject, "state": self.state, "problem": self.problem or self.too_little,
            "faults": [asdict(one) for one in self.findings], "advice": [asdict(one) for one in self.advice],
            "seen": dict(self.facts), "observed": list(self.observed),
            "not judged": [{"what": name, "because": why} for name, why in self.not_judged], "output": list(self.output),
        }  # fmt: skip

    def to_json(self) -> str:
        """Return it as JSON."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False)


def _finding_html(one: Finding) -> str:
    plain = {name: value.replace("`", "") if isinstance(value, str) else value for name, value in one.evidence.items()}
    return finding_html(replace(one, evidence=plain))


def _advice_html(one: Finding) -> str:
    return _finding_html(one).replace("✗", "→", 1)


def _wrapped(text: str, first: str, rest: str | None = None) -> list[str]:
    """Break a text into lines that fit a terminal."""
    return textwrap.wrap(
        text, _WIDTH, initial_indent=first, subsequent_indent=first if rest is None else rest, break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip


def _lines(lines: Iterable[str]) -> Iterator[str]:
    """Break the lines below the first of a finding."""
    for line in lines:
        yield from _wrapped(line.strip(), "   ", "      ")


def finding_of(data: Mapping[str, Any]) -> Finding:
    """Make a finding again of what `dataclasses.asdict` made of it."""
    return Finding(**{**data, "spoils": tuple(data["spoils"])})


def count(number: int, what: str) -> str:
    """Write a number of things: 1, "update" → "1 update"; 3, "update" → "3 updates"."""
    return f"{number:,} {what}{'s' * (number != 1)}"


def listed(words: Iterable[str]) -> str:
    """Write a list: "a, b and c"."""
    *most, last = list(words) or [""]
    return f"{', '.join(most)} and {last}" if most else last
