"""What `explain` found: where a step's time goes, what AMP could buy, and what to change first."""

from __future__ import annotations

import html
import textwrap
from dataclasses import dataclass, field
from typing import Any

from amp_course.kit.markup import inline_html
from amp_course.kit.measure import Timing, seconds_text
from amp_course.kit.table import html_table, text_table
from amp_course.speed.explain.findings import Advice
from amp_course.speed.explain.kinds import KINDS


@dataclass(frozen=True)
class Explanation:
    """Where the time of one step goes; it prints as a page.

    timing:   of the step without any recording
    busy:     why nothing can be told from it, or "". If the cores were too busy, nothing is
              claimed: there is no ceiling and no advice, and the page shows no shares
    kinds:    kind → seconds, largest first; they add up to the median step
    recorded: how long a step took under the profiler, in seconds
    ceiling:  how many times faster than fp32 the step could be with 16-bit matmuls, by Amdahl's law; None without matmuls
    now:      how many times faster than fp32 it is as it stands
    advice:   what to change, what saves most first
    notes:    what else was seen, and what could not be
    """

    timing: Timing
    kinds: dict[str, float]
    recorded: float
    ceiling: float | None
    now: float | None
    advice: tuple[Advice, ...]
    notes: tuple[str, ...] = field(default=())
    busy: str = ""

    @property
    def seconds(self) -> float:
        """The median step."""
        return self.timing.median

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers and strings, ready for JSON."""
        return {
            "seconds": self.seconds,
            "quartiles": [self.timing.q1, self.timing.q3],
            "kinds": dict(self.kinds),
            "recorded_seconds": self.recorded,
            "ceiling": self.ceiling,
            "now": self.now,
            "advice": [dict(vars(one)) for one in self.advice],
            "notes": list(self.notes),
            "waited": self.timing.waited,
        }

    def _rows(self) -> list[list[str]]:
        shown = [(kind, seconds) for kind, seconds in self.kinds.items() if seconds >= 0.0005 * self.seconds]
        rows = [[kind, seconds_text(seconds), f"{seconds / self.seconds:.0%}"] for kind, seconds in shown]
        return [["where the time goes", "per step", "share"], *rows]

    def _sentences(self) -> list[str]:
        if self.busy:
            return [f"A step took {self.timing}.", self.busy]
        said = [f"A step takes {self.timing}."]
        if self.ceiling is not None and self.now is not None:
            said.append(
                f"With every matmul in 16 bits it could be {self.ceiling:.2f} times as fast as in "
                f"fp32 here; now it is {self.now:.2f} times as fast."
            )
        return said

    def _advice(self) -> list[str]:
        if self.busy:
            return []
        if not self.advice:
            return ["Nothing stands out: no change that is known here would save 3 % of the step."]
        return [
            f"**{one.cause}**: up to {seconds_text(one.seconds)} of {seconds_text(self.seconds)}"
            f"{' (tried)' if one.measured else ''}. {one.evidence[0].upper()}{one.evidence[1:]}. "
            f"**Fix:** {one.cure}." + (f" (Chapter {one.chapter})" if one.chapter not in ("", "09") else "")
            for one in self.advice
        ]

    def __str__(self) -> str:
        """Write the page as plain text."""
        numbered = [f"{number}. {text.replace('**', '')}" for number, text in enumerate(self._advice(), 1)]
        if not self.advice:
            numbered = self._advice()
        wrapped = [textwrap.fill(text, 100, subsequent_indent="   ") for text in numbered]
        notes = [textwrap.fill(f"Note: {note}", 100, subsequent_indent="   ") for note in self.notes]
        head = "\n".join(textwrap.fill(text, 100) for text in self._sentences())
        table = [] if self.busy else [text_table(self._rows(), right=("per step", "share"))]
        return "\n\n".join([head, *table, *wrapped, *notes])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        head = "".join(f"<p>{html.escape(text)}</p>" for text in self._sentences())
        items = "".join(f"<li>{inline_html(text)}</li>" for text in self._advice())
        list_html = (
            f"<ol>{items}</ol>" if self.advice else "".join(f"<p>{inline_html(one)}</p>" for one in self._advice())
        )
        table = "" if self.busy else html_table(self._rows())
        notes = "".join(f"<p><em>{inline_html(note)}</em></p>" for note in self.notes)
        return f'<div style="max-width:60em">{head}{table}{list_html}{notes}</div>'


def in_order(kinds: dict[str, float]) -> dict[str, float]:
    """Return kinds with the largest first, and those of the list that are missing as 0."""
    full = {kind: kinds.get(kind, 0.0) for kind in KINDS}
    return dict(sorted(full.items(), key=lambda pair: pair[1], reverse=True))
