"""Where the first inf or NaN of a step came from, what led to it, and where it went."""

from __future__ import annotations

import linecache
import os
import sys
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Literal

import torch

from amp_course.watching.values import NAN, Values

_FOLDERS = ("watching", "diagnosis", "audit", "doctor", "checking", "debugging/nonfinite")
_PYTHON = os.path.dirname(os.__file__)
_OURS = (
    torch.__path__[0],
    *(str(Path(__file__).parents[1] / folder) + os.sep for folder in _FOLDERS),
)

Phase = Literal["forward", "backward", "recomputation", "optimizer"]
# Where a value that is not finite arrives
Sink = Literal["loss", "output", "gradient", "weight", "buffer", "scaler"]
MADE = "a tensor made in "  # and a line: the name of a tensor that held inf or NaN from the start


@dataclass(frozen=True)
class Line:
    """A line of source code: `file`, and its number from 1."""

    file: str
    number: int

    @classmethod
    def of(cls, place: tuple[CodeType, int] | None) -> Line | None:
        return cls(place[0].co_filename, place[1]) if place else None

    @property
    def source(self) -> str:
        """The line's text, "" if the file can no longer be read."""
        return linecache.getline(self.file, self.number).strip()

    @property
    def place(self) -> str:
        """Where it is. Example: → "line 12 of train.py" """
        cell = "ipykernel" in self.file or self.file.startswith("<ipython")
        return f"line {self.number} of {'a cell' if cell else os.path.basename(self.file)}"

    def __str__(self) -> str:
        """Write it for a message. Example: → "line 12 of train.py, `w = scores.exp()`" """
        return f"{self.place}, `{self.source}`" if self.source else self.place


def caller() -> tuple[CodeType, int] | None:
    """Return the innermost line outside torch and this package's tools."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not frame.f_code.co_filename.startswith(_OURS):
            return frame.f_code, frame.f_lineno
        frame = frame.f_back
    return None


@cache
def is_of_a_library(file: str) -> bool:
    """Return True if a file is Python's own, or in a folder into which pip installs."""
    if file.startswith((_PYTHON, "<frozen")) or "-packages" in file:
        return True
    folders = (Path(one) for one in sys.path if one and file.startswith(one + os.sep))
    return any(any(folder.glob("*.dist-info")) for folder in folders)


def user_line() -> Line | None:
    """Return the innermost line of the user's own code; if there is none, of a library's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_OURS) and not is_of_a_library(file):
            return Line(file, frame.f_lineno)
        frame = frame.f_back
    return Line.of(caller())


@dataclass(frozen=True)
class Frame:
    """One op that ran, where, and the `largest` magnitude in its result.

    op:     "exp", as torch names it
    module: path of the module that ran, "" outside of any
    """

    op: str
    phase: Phase
    module: str
    dtype: str
    largest: float


@dataclass(eq=False)
class NonfiniteOrigin:
    """An op that made inf or NaN from finite numbers, or NaN from an infinity that was meant.

    number:   in the order in which they happened, from 1
    step:     from 1
    op:       "exp", as torch names it
    module:   path of the module that ran, "" outside of any
    tensor:   the name of the weight or buffer that the op wrote to, "" for any other
    made:     its result; `took`: its inputs, without what it overwrote
    line:     the innermost line outside torch that called it; None in a backward pass
    forward:  of an op in a backward pass: the line of its forward op
    node:     of an op in a backward pass: autograd's name for it, "ExpBackward0"
    origins:  of the infinities among its inputs, if they were made while watched
    meant:    a constant of the program, such as a mask's −inf: no fault in itself
    scaling:  a loss times its scale
    before:   the ops that ran before it, the last one last
    reached:  where it, or what came of it, arrived: (kind, name)
    """

    number: int
    step: int
    phase: Phase
    op: str
    module: str
    tensor: str
    made: Values
    took: tuple[Values, ...]
    line: Line | None
    forward: Line | None
    node: str
    origins: tuple[NonfiniteOrigin, ...] = ()
    meant: bool = False
    scaling: bool = False
    before: tuple[Frame, ...] = ()
    reached: dict[tuple[Sink, str], None] = field(default_factory=dict)

    @property
    def harmful(self) -> bool:
        """Did it reach more than a GradScaler, which skips the step and lowers its scale? That is
        no remedy for what the forward pass makes before the loss is scaled.
        """
        forward = [one for one in self.roots() if one.phase == "forward"]
        by_scaling = bool(forward) and all(one.scaling for one in forward)
        harmless = {"scaler"} if not forward else {"scaler", "loss"} if by_scaling else set()
        return any(kind not in harmless for kind, _ in self.reached)

    def roots(self) -> tuple[NonfiniteOrigin, ...]:
        """Return the origins without which this one would not have happened; by default itself."""
        causes = [root for origin in self.origins if not origin.meant for root in origin.roots()]
        return tuple({root.number: root for root in causes}.values()) or (self,)

    @property
    def operands(self) -> str:
        """Its inputs in words, at most three: a fused optimizer has twenty."""
        words = [*map(str, self.took)]
        if self.op.rstrip("_") == "div" and self.took and self.took[-1].least == 0:
            words[-1] += ", 0 among them" * (self.took[-1].largest > 0)
        more = f" and {len(words) - 3} more" if len(words) > 3 else ""
        return ", ".join(words[:3]) + more

    def __str__(self) -> str:
        """Describe it: → "exp in layers.1 made inf from float16 up to 11.9" """
        where = f" in {self.module}" if self.module else ""
        what = " and ".join(sorted(self.made.holds, key=lambda kind: (kind == NAN, kind)))
        source = self.operands or "constants"
        return f"{self.op}{where} made {what} ({self.made.dtype}) from {source}"
