"""Call an answer, take what it returns, whatever that is, and show numbers in words. Judges nothing."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from amp_course.checking.exercise import Wrong
from amp_course.checking.explain import explain


def ask(answer: Callable[..., Any], shown: str, *arguments: Any) -> Any:
    """Return `answer(*arguments)`.

    Raises Wrong for whatever it raises, with the input beside it: (f, "0x0001", 1) → "… It was called with 0x0001".
    """
    try:
        return answer(*arguments)
    except Exception as error:
        raise Wrong(f"{explain(error)}. It was called with {shown}") from error


def number(got: Any, shown: str) -> float:
    """Return what an answer gave as a float: an int, a Fraction, a NumPy scalar or a tensor of one element will do.

    Raises Wrong for anything else.
    """
    if type(got) is float:
        return got
    one = _one(got, shown)
    if isinstance(one, (bool, np.bool_, str, bytes)):
        raise Wrong(f"for {shown} your function returned {one!r}, which is no number")
    try:
        return float(one)
    except Exception as error:
        raise Wrong(f"for {shown} your function returned a {type(got).__name__}, not one number") from error


def integer(got: Any, shown: str) -> int:
    """Return what an answer gave as an int. Raises Wrong for anything that is no whole number by type."""
    if type(got) is int:
        return got
    one = _one(got, shown)
    if isinstance(one, (str, bytes)):
        raise Wrong(
            f"for {shown} your function returned the text {one!r}: a pattern is an int. `int(text, 2)` reads binary "
            "digits"
        )
    if isinstance(one, (float, np.floating)):
        raise Wrong(
            f"for {shown} your function returned {show(float(one))}, a float: the task asks for the pattern, an int "
            "from 0x0 to 0xffff. Build it from whole numbers, or end with `int(…)`"
        )
    try:
        if not isinstance(one, (bool, np.bool_)):
            return operator.index(one)
    except Exception:
        pass
    raise Wrong(f"for {shown} your function returned a {type(got).__name__}, not an int")


def same(got: float, want: float) -> bool:
    """Tell whether two numbers are equal to the last bit, the sign of a zero included; NaN is like NaN."""
    if got != got or want != want:
        return got != got and want != want
    return got == want and math.copysign(1.0, got) == math.copysign(1.0, want)


def show(value: float) -> str:
    """Write a number as a reader would: 2049.0 → "2049", 2^-24 → "2^-24", 1.5 · 2^-15 → "1.5 · 2^-15"."""
    if not math.isfinite(value):
        return repr(value)
    significand, exponent = math.frexp(value)
    power = f"2^{exponent - 1}"
    if abs(significand) == 0.5 and not 0.1 < abs(value) < 1e7:
        return power if value > 0 else f"-{power}"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value) if value == 0 else repr(value).removesuffix(".0")
    return f"{2 * significand!r} · {power}"


def _one(got: Any, shown: str) -> Any:
    """Take the one element out of an array or a tensor; anything else as it is."""
    if got is None:
        raise Wrong(f"your function returned None for {shown}: give the result back with `return`")
    try:
        return got.item()
    except AttributeError:
        return got
    except Exception as error:
        raise Wrong(f"for {shown} your function returned a {type(got).__name__}, not one number") from error
