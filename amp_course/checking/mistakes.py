"""Wrong answers that people write: each a small function, or the right code with a few lines edited, and the feedback on it."""

from __future__ import annotations
import __future__

import functools
import inspect
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, eq=False)
class Mistake:
    """A wrong answer that people write.

    name:   as an instructor lists it: "grows one step late"
    feedback: the cause, then the cure, in words that continue "Not yet, because …"; with facts of the case in braces
    answer: an answer that makes this mistake; or
    edits:  lines of the right code, stripped → the line or lines that replace them
    violates: the words of the card that it goes against
    """

    name: str
    feedback: str
    answer: Any = None
    edits: Mapping[str, str] = field(default_factory=dict)
    violates: str = ""

    def made_of(self, right: Any) -> Any:
        """Return an answer that makes this mistake; `right` is the function or the class that the edits are for."""
        return edited(right, self.edits) if self.edits else self.answer


def edited(right: Any, edits: Mapping[str, str]) -> Any:
    """Build a function or a class with lines edited, stripped line → what replaces it.

    Raises ValueError for a line that is not there exactly once. Example: edited(step, {"scaler.update()": "pass"})
    """
    return _built(right, tuple(edits.items()))


@functools.cache
def _built(right: Any, edits: tuple[tuple[str, str], ...]) -> Any:
    lines = textwrap.dedent(inspect.getsource(right)).splitlines()
    stripped = [line.strip() for line in lines]
    for line, instead in edits:
        if stripped.count(line) != 1:
            raise ValueError(f"{right.__name__} has {stripped.count(line)} lines `{line}`: an edit needs exactly one")
        place = stripped.index(line)
        lines[place] = textwrap.indent(textwrap.dedent(instead), lines[place][: -len(line)])
    names: dict[str, Any] = dict(vars(inspect.getmodule(right)))
    code = compile(
        "\n".join(lines), f"<{right.__name__} with a mistake>", "exec", __future__.annotations.compiler_flag, True
    )
    exec(code, names)
    return names[right.__name__]
