"""What the clinic's exercises share: run an answer, note the cause that it names, and read the losses that it returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from amp_course.checking import Wrong, call_answer, read_number
from amp_course.debugging.clinic.causes import named_causes

CAUSE = "the cause that you name"  # the facet of the last turn, once all else is right
UNNAMED = "nothing"


def run_answer(answer: Callable[..., Any], case: str, *arguments: Any) -> tuple[Any, str]:
    """Call an answer; return what it gave and the cause that it named: "clipped-while-scaled", or UNNAMED."""
    with named_causes() as named:
        got = call_answer(answer, case, *arguments)
    return got, " and ".join(named) or UNNAMED


def read_losses(got: Any, case: str, count: int, what: str = "losses") -> list[float]:
    """Return the losses of `count` updates as floats, or what else each has one of; raises Wrong for anything but a list."""
    losses = got.tolist() if isinstance(got, Tensor) and got.dim() == 1 else got
    if not isinstance(losses, (list, tuple)):
        kind = "None" if got is None else f"an object of type {type(got).__name__}"
        raise Wrong(f"{case}, your function returned {kind}, not the list of {what}")
    numbers = [read_number(loss, case, "your list holds") for loss in losses]
    if len(numbers) != count:
        raise Wrong(f"{case}, your function returned {len(numbers)} {what} for {count} batches")
    return numbers


def describe_cause(evidence: str) -> dict[str, str]:
    """Return what is said of a cause that is not the patient's; the evidence says what was measured on the patient."""
    told = (
        f"your function is mended, and names {{got}} as the cause. {evidence} `CAUSES` lists the names to choose from"
    )
    return {CAUSE: told}
