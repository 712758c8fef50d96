"""The causes to choose from in the clinic, and `cause`, by which an answer names one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from amp_course.diagnosis.catalogue import catalogue, current_name

# More than there are scripts, so that the last cause cannot be found by elimination
_NAMES = """
anomaly-mode-meets-scaler beyond-fp16 clipped-while-scaled diverges division-by-zero host-waits
infinite-derivative labels-out-of-range log-of-zero masked-row nan-in-data never-cleared
overflow-reached-buffer ranks-drift ranks-with-different-counts ranks-with-different-scales
tf32-settings-mixed updates-vanish
"""
CAUSES = {name: catalogue()[name].sentence for name in _NAMES.split()}

_named: list[tuple[str, str]] = []


def cause(name: str, op: str = "") -> None:
    """Name the cause of the script's fault, in the first line of an answer.

    op: where an exercise asks for it, the op that `first_nonfinite` names, such as "mm"
    Raises ValueError for a name that is not in `CAUSES`.
    """
    name = current_name(name)  # so that old answers still pass after a renaming
    if name not in CAUSES:
        raise ValueError(f"{name!r} is not one of the causes to choose from: {', '.join(CAUSES)}.")
    _named.append((name, str(op).removeprefix("aten.").split(".")[0].strip("_")))


@contextmanager
def named_causes() -> Iterator[list[tuple[str, str]]]:
    """Collect the causes and ops that are named inside, each pair once."""
    named: list[tuple[str, str]] = []
    _named.clear()
    try:
        yield named
    finally:
        named += dict.fromkeys(_named)
        _named.clear()
