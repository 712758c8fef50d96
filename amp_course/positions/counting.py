"""Count which integer positions a format can tell apart, from its few constants: no tensor,
whatever the length.

The argument behind all of it: the patterns of positive numbers are in the order of their values, so
once the spacing is 1 or more, every pattern is the rounding of some integer, and counting values is
subtracting patterns.

A position past the range becomes inf or, in a format without inf (fp8 E4M3, fp6, fp4), the largest
number. All of those positions share that one id, and it counts as one.
"""

from __future__ import annotations

import operator
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from amp_course.bits.formats import FloatFormat
from amp_course.bits.rounding import round_to
from amp_course.bits.scalar import decode, encode


def first_collision(fmt: FloatFormat) -> int:
    """Return the smallest position that shares its value with an earlier one: bf16 → 257, fp16 →
    2049.

    With significand bits and range to spare it is 2^(significand_bits + 1) + 1. A format whose
    numbers end before that has its first collision where the second position past the end falls on
    the first.

    """
    position = last_exact(fmt) + 1
    while encode(position, fmt) != encode(position - 1, fmt):  # at most three rounds
        position += 1
    return position


def distinct_positions(n: int, fmt: FloatFormat) -> int:
    """Return how many values the positions 0 … n−1 have: (4096, bf16) → 769, (131072, fp16) → 7169.

    inf, which all positions past the range become, counts as one value.

    Raises TypeError unless n is an int, ValueError if it is negative.
    """
    n, exact = checked_length(n), last_exact(fmt)
    if n <= exact + 1:
        return n
    # patterns from the last exact position to the last one
    further = encode(n - 1, fmt) - encode(exact, fmt)
    # the numbers ended: what is left has one value, perhaps a known one
    if exact < 2 ** (fmt.significand_bits + 1):
        further = min(further, 1)
    return exact + 1 + further


def most_sharing(n: int, fmt: FloatFormat) -> int:
    """Return the largest number of positions among 0 … n−1 that share one value: (512, bf16) → 3,
    (131072, fp16) → 65552.

    Raises TypeError and ValueError as `distinct_positions` does.
    """
    n, exact = checked_length(n), last_exact(fmt)
    if n <= exact + 1:
        return min(n, 1)
    last = encode(n - 1, fmt)
    # The groups grow with the spacing, and of two neighbours one, with an even significand, has
    # both ties: so the largest is the last one, which n may cut short, or one of the two before it.
    starts = [first_of(pattern, fmt) for pattern in range(max(last - 2, 0), last + 1)]
    return max(end - start for start, end in zip(starts, [*starts[1:], n], strict=True))


def first_past_range(fmt: FloatFormat) -> int | None:
    """Return the smallest position that is inf: fp16 → 65520; None for a format without inf."""
    return first_of(fmt.max_pattern + 1, fmt) if fmt.specials == "ieee" else None


def last_exact(fmt: FloatFormat) -> int:
    """Return the largest integer up to which the format holds every one: bf16 → 256, fp16 → 2048,
    fp4 → 4.
    """
    return int(min(2 ** (fmt.significand_bits + 1), fmt.max))


def first_of(pattern: int, fmt: FloatFormat) -> int:
    """Return the smallest position that is rounded to a pattern:
    that of 512 in bf16 → 511, a tie that goes to even.
    """
    if pattern == 0:
        return 0
    below = Fraction(decode(pattern - 1, fmt))
    if pattern <= fmt.max_pattern:
        middle = (below + Fraction(decode(pattern, fmt))) / 2
    else:  # past the largest number: half a step further it overflows
        middle = below + Fraction(2) ** (fmt.max_exponent - fmt.significand_bits) / 2
    position = -(-middle.numerator // middle.denominator)
    return position if encode(position, fmt) >= pattern else position + 1


def position_values(n: int, fmt: FloatFormat, start: int = 0) -> Tensor:
    """Return the value that each position start … n−1 has in the format, (n − start,) float64: 257
    in bf16 → 256.

    Raises TypeError and ValueError as `distinct_positions` does.
    """
    return round_to(torch.arange(start, checked_length(n), dtype=torch.float64), fmt)


def checked_length(n: Any) -> int:
    """Return a count of positions as an int: a NumPy integer or a one-element int tensor will do.

    Raises TypeError for what is no whole number by type (2.0, True, "8"), ValueError for a negative
    one.
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
