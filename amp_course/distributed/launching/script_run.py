"""The result of a script that was run: its output by rank, its exit codes, and what went wrong."""

from __future__ import annotations

import html
from dataclasses import dataclass

from amp_course.checking.outcome import box_html
from amp_course.distributed.launching.evidence import Rank
from amp_course.kit.errors import CourseError
from amp_course.kit.markup import plain_text
from amp_course.kit.measure import seconds_text

_HEAD, _TAIL, _WIDTH = 12, 28, 300  # lines shown of one stream, and characters of a line
_PRE = (
    "margin:.2em 0 .6em;padding:.4em .6em;overflow-x:auto;color:var(--jp-content-font-color1, "
    "#222);background:var(--jp-layout-color2, #eee)"
)


@dataclass(frozen=True)
class ScriptRun:
    """A script that was run on some ranks; it prints as a page.

    command:  as typed in a shell
    ranks:    the output and the exit code, rank by rank
    seconds:  from the start of torchrun to its end
    problem:  what went wrong first, with the rank, the cause and the fix; None if nothing did
    notes:    what else is worth knowing
    launcher: what torchrun printed, and what torch and gloo printed about themselves
    """

    command: str
    ranks: tuple[Rank, ...]
    seconds: float
    problem: str | None = None
    notes: tuple[str, ...] = ()
    launcher: str = ""

    @property
    def ok(self) -> bool:
        """True if all ranks finished without an error."""
        return self.problem is None

    @property
    def output(self) -> tuple[str, ...]:
        """What each rank printed to its standard output: run.output[0] → "loss 0.25\\n"."""
        return tuple(rank.out for rank in self.ranks)

    def check(self) -> ScriptRun:
        """Return this run. Raises CourseError, with the problem, if it failed."""
        if self.problem is not None:
            raise CourseError(self.problem)
        return self

    def _streams(self) -> list[tuple[str, str]]:
        streams = []
        for rank in self.ranks:
            if rank.out.strip() or not rank.err.strip():
                streams.append((f"rank {rank.rank}", shortened(rank.out) or "(nothing)"))
            if rank.err.strip():
                streams.append((f"rank {rank.rank}, stderr", shortened(rank.err)))
        return streams

    def _last_line(self) -> str:
        if self.ok:
            return f"All ranks finished in {seconds_text(self.seconds)}."
        return f"**The run failed:** {self.problem}"

    def __repr__(self) -> str:
        lines = [f"$ {line}" for line in self.command.splitlines()]
        lines += [f"[{name}] {line}" for name, text in self._streams() for line in text.split("\n")]
        return "\n".join([*lines, plain_text(self._last_line()), *self._remarks()])

    def _remarks(self) -> list[str]:
        return [f"Note: {note}" for note in self.notes]

    def _repr_html_(self) -> str:
        command = "".join(
            f"<div><code>$ {html.escape(line)}</code></div>" for line in self.command.splitlines()
        )
        streams = "".join(
            f'<div><b>{name}</b></div><pre style="{_PRE}">{html.escape(text)}</pre>'
            for name, text in self._streams()
        )
        if self.problem is None:
            box = box_html("correct", self._last_line(), self._remarks())
        else:
            problem = f"{self.problem[0].upper()}{self.problem[1:]}"
            box = box_html("not yet", "The run failed.", [problem, *self._remarks()])
        return f'<div style="max-width:60em">{command}{streams}{box}</div>'


def shortened(text: str) -> str:
    """Cut the middle of a long text, and the ends of long lines. Example:
    100 lines → 12, "… 60 lines left out …", 28
    """
    lines = [
        line if len(line) <= _WIDTH else f"{line[:_WIDTH]}…" for line in text.rstrip().splitlines()
    ]
    left = len(lines) - _HEAD - _TAIL
    if left > 1:
        lines[_HEAD:-_TAIL] = [f"… {left:,} lines left out …"]
    return "\n".join(lines)
