"""Survey whole formats: their values, how many to each power of two, and their spacing."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from amp_course.bits.formats import FloatFormat
from amp_course.bits.scalar import decode, encode, ulp

_MANY = 2**16


def values_between(low: float, high: float, fmt: FloatFormat) -> list[float]:
    """Return the values from low to high, which are rounded first: 0, 6, fp4 → [0, 0.5, 1, … 6].

    Patterns of one sign are in the order of their values, so this counts through them.

    Raises ValueError for a negative or infinite end, low above high, or more than 65,536 values.
    """
    if not 0 <= low <= high < math.inf:
        raise ValueError(
            f"from {low} to {high}: give 0 ≤ low ≤ high, both finite; the negative values mirror "
            f"the positive"
        )
    first, last = encode(abs(low), fmt), encode(high, fmt)
    if last - first >= _MANY:
        raise ValueError(
            f"{fmt.name} has {last - first + 1:,} values from {low:g} to {high:g}: choose a "
            f"narrower range"
        )
    return [decode(pattern, fmt) for pattern in range(first, last + 1)]


def values_per_binade(fmt: FloatFormat) -> dict[int, int]:
    """Count the positive values from 2^e up to 2^(e+1) by e: fp4 → {-1: 1, 0: 2, 1: 2, 2: 2}.

    Decodes every positive pattern. Below the smallest normal number each power of two has half as
    many values as the one above.

    Raises ValueError for a format of more than 2^16 positive patterns.
    """
    if fmt.max_pattern > _MANY:
        raise ValueError(
            f"{fmt.name} has {fmt.max_pattern:,} positive patterns: this function counts them one "
            f"by one, and only up to 65,536"
        )
    exponents = (
        math.frexp(decode(pattern, fmt))[1] - 1 for pattern in range(1, fmt.max_pattern + 1)
    )
    return dict(sorted(Counter(exponents).items()))


def gaps(fmt: FloatFormat, exponents: Sequence[int]) -> list[float]:
    """Return the spacing at each 2^e, NaN past the largest number: fp16, [0, 11] → [2^−10, 2.0]."""
    values = [math.ldexp(1.0, exponent) for exponent in exponents]
    return [ulp(value, fmt) if value <= fmt.max else math.nan for value in values]
