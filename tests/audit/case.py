"""What a case of the auditor's tests is: a training step in the style of real projects, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Made = tuple[Callable[..., Any], dict[str, Any]]  # the step, and the other arguments of `audit`


@dataclass(frozen=True)
class Case:
    """One step, made anew by `make()`: `step, arguments = case.make()`, then `audit(step, **arguments)`.

    name:   a few words; unique
    style:  how it is written: "function", "closure", "method", "GAN", "SAM", "LBFGS", "accumulation", …
    faults: the finding that it deserves; several if more than one name would be right; () for a sound step
    why:    what goes wrong in training because of it, or why the step is sound although it looks unusual
    """

    name: str
    style: str
    make: Callable[[], Made]
    faults: tuple[str, ...] = ()
    why: str = ""
