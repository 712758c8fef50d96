"""Read what an answer returned as the number, pattern or tensor that was asked for, or say what it
is instead.

Whatever means the same is accepted: an int, a Fraction, a NumPy scalar or a tensor of one element
for a number, a list for a pair.
"""

from __future__ import annotations

import contextlib
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
    value = _item(got, case, "a number", subject)
    if isinstance(value, (bool, np.bool_, str, bytes)):
        raise Wrong(_sentence(subject, repr(value), case, "which is not a number"))
    try:
        return float(value)
    except Exception as error:
        raise _not(got, case, "a number", subject) from error


def read_integer(got: Any, case: str = "", subject: str = _FUNCTION) -> int:
    """Return what an answer gave as an int. Raises Wrong for anything else, floats included."""
    if type(got) is int:
        return got
    value = _item(got, case, "an int", subject)
    if isinstance(value, str):
        raise Wrong(_sentence(subject, f"the text {value!r}", case, "not an int"))
    if isinstance(value, (float, np.floating)):
        but = "a float and not an int: use `int(…)`"
        raise Wrong(_sentence(subject, show_number(float(value)), case, but))
    if not isinstance(value, (bool, np.bool_)):
        with contextlib.suppress(Exception):
            return operator.index(value)
    raise _not(got, case, "an int", subject)


def read_bool(got: Any, case: str = "", subject: str = _FUNCTION) -> bool:
    """Return what an answer gave as a bool: 0, 1, NumPy's or a tensor of one element will do.
    Raises Wrong for anything else.
    """
    value = _item(got, case, "True or False", subject)
    if isinstance(value, (bool, np.bool_)) or (type(value) is int and value in (0, 1)):
        return bool(value)
    shown = repr(value) if type(value) in (int, float, str) else _type_of(value)
    raise Wrong(_sentence(subject, shown, case, "not True or False"))


def read_pair(
    got: Any, case: str = "", what: str = "a pair", subject: str = _FUNCTION
) -> tuple[Any, Any]:
    """Return what an answer gave as two things. Raises Wrong for anything else; `what` names it:
    "the pair (scale, streak)".
    """
    if not isinstance(got, (tuple, list)):
        raise _not(got, case, what, subject)
    if len(got) != 2:
        shown = f"{_type_of(got)} of length {len(got)}"
        raise Wrong(_sentence(subject, shown, case, f"not {what}"))
    return got[0], got[1]


def read_dict(
    got: Any, keys: Collection[str], case: str = "", subject: str = _FUNCTION
) -> dict[str, Any]:
    """Return what an answer gave for each of the keys; other keys do not matter.
    Raises Wrong for anything else.
    """
    wanted = ", ".join(keys)
    if not isinstance(got, Mapping):
        raise _not(got, case, f"a dict with the keys {wanted}", subject)
    if missing := [key for key in keys if key not in got]:
        found = _sentence(subject, f"a dict without the key {missing[0]!r}", case)
        raise Wrong(f"{found}: it needs {wanted}")
    return {key: got[key] for key in keys}


def read_tensor(
    got: Any,
    case: str = "",
    what: str = "a tensor",
    shape: Iterable[int] | None = None,
    subject: str = _FUNCTION,
) -> Tensor:
    """Return what an answer gave as a detached tensor, of a shape if one is given.
    Raises Wrong for anything else.
    """
    if not isinstance(got, Tensor):
        raise _not(got, case, what, subject)
    if shape is not None and got.shape != torch.Size(shape):
        raise _not(got, case, f"one of shape {tuple(shape)}", subject)
    return got.detach()


def _item(got: Any, case: str, what: str, subject: str) -> Any:
    """Take the one element out of an array or a tensor; return anything else but None unchanged."""
    if got is None:
        raise _not(got, case, what, subject)
    try:
        return got.item()
    except AttributeError:
        return got
    except Exception as error:
        raise _not(got, case, what, subject) from error


def _not(got: Any, case: str, what: str, subject: str) -> Wrong:
    """Return the error for an object of another type than the one that was asked for."""
    if got is not None:
        return Wrong(_sentence(subject, _type_of(got), case, f"not {what}"))
    is_call = subject.endswith("returned")
    question = ": does every path through it end with a `return`?" if is_call else ""
    return Wrong(_sentence(subject, "None", case, f"not {what}") + question)


def _sentence(subject: str, got: str, case: str, but: str = "") -> str:
    """Build "your function returned a list for 0x0001, not a number",
    or with another case in front: "at step 2, your …".
    """
    end = f", {but}" if but else ""
    if case.startswith(("for ", "from ", "as ")):
        return f"{subject} {got} {case}{end}"
    return f"{f'{case}, ' if case else ''}{subject} {got}{end}"


def _type_of(got: Any) -> str:
    """Name the type of an object: "a list"."""
    if isinstance(got, Tensor):
        return f"a tensor of shape {tuple(got.shape)}"
    name = type(got).__name__
    return f"an {name}" if name[:1].lower() in "aeiou" or name == "ndarray" else f"a {name}"
