"""Wrong answers that people write, as functions or edits of the right code, with the feedback."""

from __future__ import annotations
import __future__

import contextlib
import functools
import inspect
import io
import re
import textwrap
import tokenize
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, eq=False)
class Mistake:
    """A wrong answer that people write.

    name:     as an instructor lists it: "grows one step late"
    feedback: the cause, then the fix, in words that continue "Not quite: …"; facts of the case in
              braces
    answer:   an answer that makes this mistake; or
    edits:    lines of the right code, stripped → the line or lines that replace them
    violates: the words of the card that it goes against
    """

    name: str
    feedback: str
    answer: Any = None
    edits: Mapping[str, str] = field(default_factory=dict)
    violates: str = ""

    def made_of(self, right: Any) -> Any:
        """Return an answer that makes this mistake; the edits are those of `right`."""
        return edited(right, self.edits) if self.edits else self.answer


def edited(right: Any, edits: Mapping[str, str]) -> Any:
    """Build a function or a class with lines edited, stripped line → what replaces it.

    Raises ValueError for a line that is not there exactly once. Example: edited(step,
    {"scaler.update()": "pass"})
    """
    return _built(right, tuple(edits.items()))


@functools.cache
def _built(right: Any, edits: tuple[tuple[str, str], ...]) -> Any:
    source = textwrap.dedent(inspect.getsource(right))
    lines = source.splitlines()
    rows = [(line.strip(), (row, row)) for row, line in enumerate(lines)]
    for line, instead in edits:
        found = [span for text, span in rows if text == line]
        if not found:  # it may be wrapped
            key = [text for text, _ in _statements(line)]
            found = [span for text, span in _statements(source) if [text] == key]
        if len(found) != 1:
            raise ValueError(
                f"{right.__name__} has {len(found)} lines `{line}`: an edit needs exactly one"
            )
        first, last = found[0]
        indent = lines[first][: -len(lines[first].lstrip())]
        replacement = textwrap.indent(textwrap.dedent(instead), indent)
        lines[first : last + 1] = [replacement, *[""] * (last - first)]
    names: dict[str, Any] = dict(vars(inspect.getmodule(right)))
    name = f"<{right.__name__} with a mistake>"
    flags = __future__.annotations.compiler_flag
    exec(compile("\n".join(lines), name, "exec", flags, True), names)
    return names[right.__name__]


def _statements(source: str) -> list[tuple[str, tuple[int, int]]]:
    """Return the statements, however they are wrapped: the text without spaces, and its rows."""
    found, text, first = [], "", 0
    with contextlib.suppress(tokenize.TokenError):  # for a part of a statement
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.NEWLINE and text:
                text = re.sub(r",([)\]}])", r"\1", text)
                text = re.sub(r"^(return |.*?[^=<>!]=)\((.*)\)$", r"\1\2", text)
                found.append((text, (first, token.start[0] - 1)))
                text = ""
            elif token.type not in _LAYOUT:
                first = first if text else token.start[0] - 1
                text += f"{token.string} " if token.type == tokenize.NAME else token.string
    return found


_LAYOUT = (
    tokenize.NEWLINE,
    tokenize.NL,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.COMMENT,
    tokenize.ENDMARKER,
)
