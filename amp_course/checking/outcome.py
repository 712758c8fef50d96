"""What a check returns, and how it is shown: HTML in a notebook, plain text anywhere else."""

from __future__ import annotations

import html
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from amp_course.kit.markup import inline_html, plain_text

State = Literal["not attempted", "not yet", "correct"]

# A sign with each colour, so that the state can be read without colour.
_SIGNS = {
    "not attempted": ("○", "--jp-border-color1, #9e9e9e"),
    "not yet": ("✗", "--jp-warn-color1, #e65100"),
    "correct": ("✓", "--jp-success-color1, #2e7d32"),
    "hint": ("→", "--jp-info-color1, #1565c0"),
    "solution": ("→", "--jp-info-color1, #1565c0"),
    "card": ("✎", "--jp-brand-color1, #1565c0"),
}


class Wrong(Exception):
    """Raised for a wrong answer: the cause, then the fix, in words that continue "Not quite: …".

    mistake: the name of the exercise's mistake that does what the answer did, if one does
    """

    def __init__(self, diagnosis: str, mistake: str | None = None) -> None:
        super().__init__(diagnosis)
        self.mistake = mistake


class Interrupted(KeyboardInterrupt):
    """Raised by a check that Ctrl-C ends; a notebook shows its one sentence and no traceback."""

    def __str__(self) -> str:
        return "Interrupted; nothing was recorded."

    def _render_traceback_(self) -> list[str]:  # called by IPython
        return [str(self)]


def box_html(kind: str, head: str, lines: list[str], code: str | None = None) -> str:
    """Draw a box: a coloured edge, a sign, a bold head, lines of text and perhaps a listing."""
    sign, colour = _SIGNS[kind]
    body = "".join(f'<div style="margin-top:.35em">{inline_html(line)}</div>' for line in lines)
    if code is not None:
        body += (
            '<pre style="margin:.5em 0 0;padding:.6em;overflow-x:auto;'
            "color:var(--jp-content-font-color1, #222);"
            f'background:var(--jp-layout-color2, #eee)">{html.escape(code)}</pre>'
        )
    # the course's JupyterLab has it read out when its cell has run
    role = "" if kind == "card" else ' role="status"'
    return (
        f'<div{role} style="border-left:5px solid var({colour});padding:.5em .9em;'
        "margin:.2em 0;max-width:52em;color:var(--jp-content-font-color1, #222);"
        'background:var(--jp-layout-color1, #fff);line-height:1.45">'
        f"<b>{sign} {inline_html(head)}</b>{body}</div>"
    )


class Shown:
    """Something that is shown by the call that makes it, and again only in a later cell.

    `exercise.check(f)` shows its outcome and returns it. As the last line of a cell, the returned
    object would be shown a second time; remembering the cell's execution count prevents that.
    """

    _shown_in: object = None

    def _html(self) -> str:
        raise AssertionError("each kind of message draws itself")

    def show(self, history: Mapping[str, Any] | None = None) -> None:
        """Show it now: as HTML where IPython runs, else print the plain text.

        history: how an answer came about, stored with the cell's output for a class's report
        """
        shell = _shell()
        if shell is None:
            print(self)
            return
        from IPython.display import display

        object.__setattr__(self, "_shown_in", shell.execution_count)
        stored = {"amp_course": dict(history)} if history else {}
        display({"text/html": self._html(), "text/plain": str(self)}, raw=True, metadata=stored)

    def _ipython_display_(self) -> None:
        shell = _shell()
        if shell is None or self._shown_in != shell.execution_count:
            self.show()


@dataclass(frozen=True)
class Outcome(Shown):
    """One of the three outcomes of a check.

    state:   "not attempted", "not yet" or "correct"
    message: why; for "not yet" the cause and the fix, in words that continue "Not quite: …"
    notes:   what else to know: a state that was put back, progress that could not be saved
    mistake: the name of the known mistake that the answer makes, if it makes one
    """

    state: State
    message: str
    notes: tuple[str, ...] = ()
    mistake: str | None = None

    def __bool__(self) -> bool:
        return self.state == "correct"

    @property
    def _head(self) -> str:
        return "Not quite:" if self.state == "not yet" else f"{self.state.capitalize()}."

    @property
    def _lines(self) -> list[str]:
        return [*self.message.split("\n"), *(f"Note: {note}" for note in self.notes)]

    def __str__(self) -> str:
        return plain_text("\n".join([f"{self._head} {self._lines[0]}", *self._lines[1:]]))

    __repr__ = __str__

    def _html(self) -> str:
        return box_html(self.state, self._head, self._lines)


@dataclass(frozen=True)
class Note(Shown):
    """A hint or a solution: a head, lines of text and perhaps a listing."""

    kind: Literal["hint", "solution"]
    head: str
    lines: tuple[str, ...] = ()
    code: str | None = None

    def __str__(self) -> str:
        text = "\n".join(map(plain_text, [self.head, *self.lines]))
        return f"{text}\n{self.code}" if self.code else text

    __repr__ = __str__

    def _html(self) -> str:
        return box_html(self.kind, self.head, list(self.lines), self.code)


def _shell():  # type: ignore[no-untyped-def]  # IPython's shell, or None outside of it
    if "IPython" not in sys.modules:
        return None
    from IPython import get_ipython

    return get_ipython()
