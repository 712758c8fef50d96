"""Survey whole formats: all their values, how many to a power of two,
what they cost in precision.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from amp_course.bits.formats import FloatFormat
from amp_course.bits.scalar import decode, encode, ulp

_MANY = 2**16


def values_between(low: float, high: float, fmt: FloatFormat) -> list[float]:
    """Return the format's values from low to high, both rounded to the format first: 0, 6, fp4 →
    [0, 0.5, 1, … 6].

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
    """Count the positive values from 2^e up to 2^(e+1), for every exponent e that has any: fp4 →
    {-1: 1, 0: 2, 1: 2, 2: 2}.

    Below the smallest normal number each power of two has half the values of the one above. Counts
    by decoding every positive pattern.

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
    """Return the spacing at each power of two, NaN where the format has no value so large:
    fp16, [0, 11] → [2^−10, 2.0].
    """
    return [
        ulp(math.ldexp(1.0, exponent), fmt) if math.ldexp(1.0, exponent) <= fmt.max else math.nan
        for exponent in exponents
    ]
