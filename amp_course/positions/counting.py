"""Count the integer positions that a format distinguishes, from its constants, without a tensor.

The patterns of positive numbers are in the order of their values. So where the spacing is 1 or
more, every pattern is the rounding of some integer, and counting values is subtracting patterns.

Positions past the range all become inf or, in a format without inf (fp8 E4M3, fp6, fp4), the
largest number: they share one id.
"""

from __future__ import annotations

import math
import operator
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from amp_course.bits.formats import FloatFormat
from amp_course.bits.rounding import round_to
from amp_course.bits.scalar import decode, encode


def first_collision(fmt: FloatFormat) -> int:
    """Return the smallest position that shares its value with an earlier one: bf16 → 257.

    That is 2^(significand_bits + 1) + 1 or, in a format whose numbers end before, the second
    position past the end.
    """
    position = last_exact(fmt) + 1
    while encode(position, fmt) != encode(position - 1, fmt):  # at most three rounds
        position += 1
    return position


def distinct_positions(n: int, fmt: FloatFormat) -> int:
    """Return how many values the positions 0 … n−1 have, inf included: (4096, bf16) → 769.

    Raises TypeError unless n is an int, ValueError if it is negative.
    """
    n, exact = checked_length(n), last_exact(fmt)
    if n <= exact + 1:
        return n
    # patterns from the last exact position to the last position
    further = encode(n - 1, fmt) - encode(exact, fmt)
    # in a format whose numbers end here, all further positions share one value
    if exact < 2 ** (fmt.significand_bits + 1):
        further = min(further, 1)
    return exact + 1 + further


def most_sharing(n: int, fmt: FloatFormat) -> int:
    """Return the most positions among 0 … n−1 that share one value: (512, bf16) → 3.

    Raises TypeError and ValueError as `distinct_positions` does.
    """
    n, exact = checked_length(n), last_exact(fmt)
    if n <= exact + 1:
        return min(n, 1)
    last = encode(n - 1, fmt)
    # Groups grow with the spacing, and ties go to those with an even significand. So the largest is
    # the last group, which n may cut short, or one of the two before it.
    starts = [first_of(pattern, fmt) for pattern in range(max(last - 2, 0), last + 1)]
    return max(end - start for start, end in zip(starts, [*starts[1:], n], strict=True))


def first_past_range(fmt: FloatFormat) -> int | None:
    """Return the smallest position that is inf: fp16 → 65520; None for a format without inf."""
    return first_of(fmt.max_pattern + 1, fmt) if fmt.specials == "ieee" else None


def last_exact(fmt: FloatFormat) -> int:
    """Return the largest integer up to which the format holds all: bf16 → 256, fp4 → 4."""
    return int(min(2 ** (fmt.significand_bits + 1), fmt.max))


def first_of(pattern: int, fmt: FloatFormat) -> int:
    """Return the first position that is rounded to a pattern: of 512 in bf16 → 511, a tie."""
    if pattern == 0:
        return 0
    below = Fraction(decode(pattern - 1, fmt))
    if pattern <= fmt.max_pattern:
        middle = (below + Fraction(decode(pattern, fmt))) / 2
    else:  # overflow starts half a step past the largest number
        middle = below + Fraction(2) ** (fmt.max_exponent - fmt.significand_bits) / 2
    position = math.ceil(middle)
    return position if encode(position, fmt) >= pattern else position + 1


def position_values(n: int, fmt: FloatFormat, start: int = 0) -> Tensor:
    """Return the positions start … n−1 rounded to the format, (n − start,) float64: 257 → 256.

    Raises TypeError and ValueError as `distinct_positions` does.
    """
    return round_to(torch.arange(start, checked_length(n), dtype=torch.float64), fmt)


def checked_length(n: Any) -> int:
    """Return a count of positions, which may be a NumPy integer or an int tensor, as an int.

    Raises TypeError for other types (2.0, True, "8"), ValueError for a negative number.
    """
    try:
        number = None if isinstance(n, bool) else operator.index(n)
    except TypeError:
        number = None
    if number is None:
        raise TypeError(f"the number of positions has to be an int, not {n!r}: pass int(…)")
    if number < 0:
        raise ValueError(f"the number of positions is {number}, and cannot be negative")
    return number
