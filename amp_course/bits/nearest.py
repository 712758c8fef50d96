"""The exact number and what a format makes of it: what is lost, and why.

Exact means exact: a Fraction, so that neither a typed 2049 nor a typed 0.1 has been rounded before
a format rounds it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Literal

from amp_course.bits.formats import FP8_E4M3, FloatFormat
from amp_course.bits.scalar import decode, encode, neighbours

Exact = Fraction | float  # a float only for what no Fraction can be: −0, inf, −inf, NaN

# "zero": too small; "infinity" or, in a format without inf, "largest": too large; "none": NaN in a
# format without NaN
Outcome = Literal["exact", "down", "up", "zero", "infinity", "largest", "none"]


@dataclass(frozen=True)
class Nearest:
    """What a format makes of an exact number.

    pattern: None where the format has nothing for it (NaN in fp6 and fp4)
    value:   the pattern's value; NaN without a pattern
    tie:     the number lies half-way between two of the format's, and the even pattern wins
    """

    exact: Exact
    fmt: FloatFormat
    pattern: int | None
    value: Exact
    outcome: Outcome
    tie: bool = False

    @property
    def error(self) -> Fraction | None:
        """Value minus exact number; None unless both are finite."""
        if is_finite(self.exact) and is_finite(self.value):
            return Fraction(self.value) - Fraction(self.exact)
        return None

    @property
    def relative(self) -> Fraction | None:
        """|error| over |exact number|; None without an error, or if the number is 0."""
        if self.error is None or not self.exact:
            return None
        return abs(self.error / Fraction(self.exact))


def nearest(exact: Exact, fmt: FloatFormat) -> Nearest:
    """Round an exact number into a format: nearest(Fraction(2049), FP16) → 2048, "down", a tie."""
    try:
        pattern = encode(exact, fmt)
    except ValueError:
        return Nearest(exact, fmt, None, math.nan, "none")
    value = exact_value(pattern, fmt)
    rounded = partial(Nearest, exact, fmt, pattern, value)
    if value == exact or (is_nan(value) and is_nan(exact)):
        return rounded("exact")
    if not is_finite(value):
        return rounded("infinity")
    if not is_finite(exact):
        return rounded("largest")
    error = Fraction(value) - Fraction(exact)
    # the exact number lies between `value` and this one
    far = neighbours(pattern, fmt)[error < 0]
    tie = math.isfinite(far) and Fraction(far) - Fraction(exact) == -error
    if value == 0:
        return rounded("zero", tie)
    if fmt.specials != "ieee" and abs(value) == fmt.max < abs(Fraction(exact)):
        return rounded("largest")
    return rounded("down" if error < 0 else "up", tie)


def exact_value(pattern: int, fmt: FloatFormat) -> Exact:
    """Return a pattern's value, as a Fraction if possible: 0x3C00 in fp16 → Fraction(1, 1)."""
    value = decode(pattern, fmt)
    is_fraction = math.isfinite(value) and (value or math.copysign(1, value) > 0)
    return Fraction(value) if is_fraction else value


def pattern_for(exact: Exact, fmt: FloatFormat) -> int:
    """Return the pattern nearest to an exact number, as `encode` does.

    Raises ValueError, in words for the learner, for NaN in a format without it.
    """
    try:
        return encode(exact, fmt)
    except ValueError:
        raise ValueError(
            f"{fmt.name} has no NaN; every one of its patterns is a number: "
            f"type a number, or choose a format with NaN, such as {FP8_E4M3.name}"
        ) from None


def step(pattern: int, fmt: FloatFormat, up: bool) -> int:
    """Return the pattern of the next value up or down: 0x3C00 in fp16, up → 0x3C01.

    Raises ValueError, in words for the learner, at the end of the format's range and for NaN.
    """
    value = decode(pattern, fmt)
    if math.isnan(value):
        raise ValueError(
            "NaN is neither above nor below any number, so it has no neighbours: start from a "
            "number"
        )
    if value == (math.inf if up else -math.inf):
        raise ValueError(f"nothing is {'above inf' if up else 'below −inf'}: step the other way")
    found = neighbours(pattern, fmt)[up]
    if math.isnan(found):
        end = f"{fmt.max:g} is the largest" if up else f"−{fmt.max:g} is the lowest"
        raise ValueError(f"{end} number of {fmt.name}, which has no inf: step the other way")
    return encode(found, fmt)


def is_finite(value: Exact) -> bool:
    """Return True for any Fraction and for −0."""
    return isinstance(value, Fraction) or math.isfinite(value)


def is_nan(value: Exact) -> bool:
    """Return True for NaN, the only value that differs from itself."""
    return value != value
