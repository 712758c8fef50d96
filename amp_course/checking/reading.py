"""Take what an answer returned as what it was asked for, a number, a pattern, a tensor, or say what
it is instead.

Whatever means the same is taken: an int, a Fraction, a NumPy scalar or a tensor of one element for
a number, a list for a pair.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from amp_course.checking.differences import show_number
from amp_course.checking.outcome import Wrong

_FUNCTION = "your function returned"


def read_number(got: Any, case: str = "", subject: str = _FUNCTION) -> float:
    """Return what an answer gave as a float.

    Raises Wrong for anything else. `case` says when: "for 0x0001"; `subject` says who, with a verb:
    "`get_scale()` returned".
    """
    if type(got) is float:
        return got
    one = _one(got, case, "a number", subject)
    if isinstance(one, (bool, np.bool_, str, bytes)):
        raise Wrong(_said(subject, f"{one!r}", case, "which is not a number"))
    try:
        return float(one)
    except Exception as error:
        raise Wrong(_said(subject, _a(got), case, "not a number")) from error


def read_integer(got: Any, case: str = "", what: str = "an int", subject: str = _FUNCTION) -> int:
    """Return what an answer gave as an int. Raises Wrong for anything that is not a whole number by
    type.
    """
    if type(got) is int:
        return got
    one = _one(got, case, what, subject)
    if isinstance(one, str):
        raise Wrong(_said(subject, f"the text {one!r}", case, f"not {what}"))
    if isinstance(one, (float, np.floating)):
        raise Wrong(
            _said(subject, show_number(float(one)), case, f"a float and not {what}: use `int(…)`")
        )
    try:
        if not isinstance(one, (bool, np.bool_)):
            return operator.index(one)
    except Exception:
        pass
    raise Wrong(_said(subject, _a(got), case, f"not {what}"))


def read_bool(
    got: Any, case: str = "", what: str = "True or False", subject: str = _FUNCTION
) -> bool:
    """Return what an answer gave as a bool: 0, 1, NumPy's or a tensor of one element will do.
    Raises Wrong for anything else.
    """
    one = _one(got, case, what, subject)
    if isinstance(one, (bool, np.bool_)) or (type(one) is int and one in (0, 1)):
        return bool(one)
    raise Wrong(_said(subject, _shown(one), case, f"not {what}"))


def read_pair(
    got: Any, case: str = "", what: str = "a pair", subject: str = _FUNCTION
) -> tuple[Any, Any]:
    """Return what an answer gave as two things. Raises Wrong for anything else; `what` names it:
    "the pair (scale, streak)".
    """
    if got is None:
        raise Wrong(_none(case, what, subject))
    if isinstance(got, (tuple, list)):
        if len(got) == 2:
            return got[0], got[1]
        raise Wrong(_said(subject, f"{_a(got)} of length {len(got)}", case, f"not {what}"))
    raise Wrong(_said(subject, _a(got), case, f"not {what}"))


def read_dict(
    got: Any, keys: Collection[str], case: str = "", subject: str = _FUNCTION
) -> dict[str, Any]:
    """Return what an answer gave for each of the keys; other keys do not matter.
    Raises Wrong for anything else.
    """
    wanted = ", ".join(keys)
    what = f"a dict with the keys {wanted}"
    if not isinstance(got, Mapping):
        raise Wrong(
            _none(case, what, subject)
            if got is None
            else _said(subject, _a(got), case, f"not {what}")
        )
    if missing := [key for key in keys if key not in got]:
        raise Wrong(
            f"{_said(subject, f'a dict without the key {missing[0]!r}', case, '')}: it needs "
            f"{wanted}"
        )
    return {key: got[key] for key in keys}


def read_tensor(
    got: Any,
    case: str = "",
    what: str = "a tensor",
    shape: Iterable[int] | None = None,
    subject: str = _FUNCTION,
) -> Tensor:
    """Return what an answer gave as a detached tensor, of a shape if that is given.
    Raises Wrong for anything else.
    """
    if got is None:
        raise Wrong(_none(case, what, subject))
    if not isinstance(got, Tensor):
        raise Wrong(_said(subject, _a(got), case, f"not {what}"))
    if shape is not None and got.shape != torch.Size(shape):
        raise Wrong(_said(subject, _a(got), case, f"not one of shape {tuple(shape)}"))
    return got.detach()


def _one(got: Any, case: str, what: str, subject: str) -> Any:
    """Take the one element out of an array or a tensor; anything else unchanged."""
    if got is None:
        raise Wrong(_none(case, what, subject))
    try:
        return got.item()
    except AttributeError:
        return got
    except Exception as error:
        raise Wrong(_said(subject, _a(got), case, f"not {what}")) from error


def _none(case: str, what: str, subject: str) -> str:
    told = _said(subject, "None", case, f"not {what}")
    return (
        f"{told}: does every path through it end with a `return`?"
        if subject.endswith("returned")
        else told
    )


def _said(subject: str, got: str, case: str, but: str) -> str:
    """Build "your function returned a list for 0x0001, not a number",
    or with another case in front: "at step 2, your …".
    """
    after = case.startswith(("for ", "from ", "as "))
    told = f"{subject} {got}{f' {case}' if case and after else ''}"
    return (f"{case}, " if case and not after else "") + told + (f", {but}" if but else "")


def _shown(one: Any) -> str:
    return repr(one) if type(one) in (int, float, str) else _a(one)


def _a(got: Any) -> str:
    """Name the type of an object: "a list"."""
    if isinstance(got, Tensor):
        return f"a tensor of shape {tuple(got.shape)}"
    name = type(got).__name__
    return f"an {name}" if name[:1].lower() in "aeiou" or name == "ndarray" else f"a {name}"
