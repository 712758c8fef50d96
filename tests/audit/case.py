"""What a case of the auditor's tests is: a training step as in real projects, and its fault."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Made = tuple[Callable[..., Any], dict[str, Any]]  # the step, and the other arguments of `audit`


@dataclass(frozen=True)
class Case:
    """One step: `step, arguments = case.make()` makes a new one, then `audit(step, **arguments)`.

    name:   a few words; unique
    style:  how it is written: "function", "closure", "method", "GAN", "SAM", "accumulation", …
    faults: what it may be called; () for a sound step
    why:    what goes wrong because of it, or why the step is sound although it looks unusual
    """

    name: str
    style: str
    make: Callable[[], Made]
    faults: tuple[str, ...] = ()
    why: str = ""
