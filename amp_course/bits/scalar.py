"""Read and write single numbers in any format, slowly and obviously: the course's reference.

Everything is exact: values are Fractions or Python floats, which hold every value of every format
here; patterns are ints. `rounding.round_to` is the fast twin for tensors.
"""

from __future__ import annotations

import math
import operator
from fractions import Fraction
from numbers import Integral
from typing import Any, Literal, NamedTuple

from amp_course.bits.formats import FloatFormat

Kind = Literal["zero", "subnormal", "normal", "infinity", "NaN"]


class Fields(NamedTuple):
    """The three parts of a pattern, as unsigned integers."""

    sign: int
    exponent: int
    significand: int


def split(pattern: int, fmt: FloatFormat) -> Fields:
    """Cut a pattern into its fields: 0xC000 in fp16 → (1, 16, 0).

    Raises TypeError for a pattern that is not an int, ValueError for one outside the format.
    """
    if isinstance(pattern, bool) or not hasattr(pattern, "__index__"):
        raise TypeError(
            f"a pattern is an int, such as 0x3C00, not a {type(pattern).__name__}: {pattern!r}"
        )
    pattern = operator.index(pattern)
    if not 0 <= pattern < 2**fmt.bits:
        raise ValueError(
            f"pattern {pattern:#x} is outside {fmt.name}, whose {fmt.bits} bits go from 0x0 to "
            f"{2**fmt.bits - 1:#x}"
        )
    sign, magnitude = divmod(pattern, 2 ** (fmt.bits - 1))
    exponent, significand = divmod(magnitude, 2**fmt.significand_bits)
    return Fields(sign, exponent, significand)


def kind(pattern: int, fmt: FloatFormat) -> Kind:
    """Say what kind of value a pattern has: 0x0001 in fp16 → "subnormal"."""
    fields = split(pattern, fmt)
    if pattern % 2 ** (fmt.bits - 1) > fmt.max_pattern:
        return "infinity" if fmt.specials == "ieee" and fields.significand == 0 else "NaN"
    if fields.exponent:
        return "normal"
    return "subnormal" if fields.significand else "zero"


def decode(pattern: int, fmt: FloatFormat) -> float:
    """Return the value of a pattern: 0x3C01 in fp16 → 1.0009765625.

    Normal:    (−1)^sign · 2^(exponent − bias) · 1.significand
    Subnormal: (−1)^sign · 2^(1 − bias)        · 0.significand

    Raises TypeError and ValueError as `split` does.
    """
    fields, what = split(pattern, fmt), kind(pattern, fmt)
    if what == "NaN":
        return math.nan
    if what == "infinity":
        magnitude = math.inf
    else:
        hidden = 2**fmt.significand_bits if fields.exponent else 0
        # subtle: field 0 has the exponent of field 1, and no hidden 1
        exponent = max(fields.exponent, 1) - fmt.bias
        magnitude = math.ldexp(hidden + fields.significand, exponent - fmt.significand_bits)
    return -magnitude if fields.sign else magnitude


def encode(value: float | Fraction, fmt: FloatFormat) -> int:
    """Return the pattern nearest to a value, ties to the even one: 2049 in fp16 → 0x6800, 2048.

    A value past the largest number by half a step or more becomes inf or, in a format without inf
    (fp8 E4M3, fp6, fp4), the largest number. For E4M3 that is OCP's saturating mode, as in torch
    from 2.13 on; older versions, and ml_dtypes, return NaN past 464. Without significand bits a tie
    goes up (IEEE 754-2019 §4.3.1).

    value: a float, an int, a NumPy or torch scalar; for an exact decimal, a Fraction
    Raises TypeError for anything but a number, ValueError for NaN in a format that has none.
    """
    value = _number(value)
    if value != value:
        return nan_pattern(fmt)
    negative = math.copysign(1.0, value) < 0 if isinstance(value, float) else value < 0
    sign = 2 ** (fmt.bits - 1) if negative else 0
    if isinstance(value, float) and math.isinf(value):
        return sign + _overflow_pattern(fmt)
    magnitude = abs(Fraction(value))
    if magnitude == 0:
        return sign
    exponent = max(floor_log2(magnitude), fmt.min_exponent)
    # a Fraction rounds half to even
    steps = round(magnitude / _power_of_two(exponent - fmt.significand_bits))
    # subtle: the hidden 1 in `steps`, if there is one, adds 1 to the exponent field; rounding up to
    # the next power of two carries into it once more
    pattern = ((exponent - fmt.min_exponent) << fmt.significand_bits) + steps
    return sign + (pattern if pattern <= fmt.max_pattern else _overflow_pattern(fmt))


def nan_pattern(fmt: FloatFormat) -> int:
    """Return the pattern of NaN, IEEE 754's quiet one without a sign: fp16 → 0x7E00.

    Raises ValueError for a format that has no NaN.
    """
    if fmt.specials == "finite":
        raise ValueError(
            f"{fmt.name} has no NaN: each of its patterns is a number. Check for NaN before you "
            f"round"
        )
    if fmt.specials == "fn":
        return fmt.max_pattern + 1
    return (fmt.top_field << fmt.significand_bits) + 2 ** (fmt.significand_bits - 1)


def ulp(value: float | Fraction, fmt: FloatFormat) -> float:
    """Return the format's spacing at a value, a unit in the last place: 1.5 in fp16 → 2^−10.

    It doubles at each power of two, which has the spacing above it, and is constant below the
    smallest normal number. inf for a value that becomes inf, NaN for NaN, as with `math.ulp`.

    Raises TypeError for anything but a number.
    """
    value = _number(value)
    if value != value:
        return math.nan
    nearest = decode(encode(value, fmt), fmt)
    if not math.isfinite(nearest):
        return math.inf
    # a format without inf keeps its last gap
    magnitude = abs(Fraction(value if abs(nearest) < fmt.max else nearest))
    exponent = max(floor_log2(magnitude), fmt.min_exponent) if magnitude else fmt.min_exponent
    return math.ldexp(1.0, exponent - fmt.significand_bits)


def neighbours(pattern: int, fmt: FloatFormat) -> tuple[float, float]:
    """Return the next value below and the next above: 0x0000 in fp16 → (−2^−24, 2^−24).

    Both zeros have the same neighbours, NaN has none: (NaN, NaN). Past the ends there is inf, or
    NaN in a format without inf.
    """
    if kind(pattern, fmt) == "NaN":
        return math.nan, math.nan
    half, last = 2 ** (fmt.bits - 1), _overflow_pattern(fmt)
    # among numbers of one sign, patterns are in the order of their values
    ordered = half - pattern if pattern >= half else pattern

    def value(number: int) -> float:
        if abs(number) > last:
            return math.copysign(math.inf, number) if fmt.specials == "ieee" else math.nan
        return decode(number if number >= 0 else half - number, fmt)

    return value(ordered - 1), value(ordered + 1)


def floor_log2(magnitude: Fraction) -> int:
    """Return the exponent of a positive Fraction's binade: 1/3 → −2, as 2^−2 ≤ 1/3 < 2^−1."""
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    return exponent if _power_of_two(exponent) <= magnitude else exponent - 1


def _number(value: Any) -> float | Fraction:
    """Return a number of any kind as a float, an int or a Fraction, to compute with exactly."""
    if isinstance(value, (float, int, Fraction)):
        return value
    if isinstance(value, (str, bytes)):
        raise TypeError(
            f"a number is needed here, not a {type(value).__name__}: {value!r}. Fraction(text) "
            f"reads a decimal"
        )
    try:
        return int(value) if isinstance(value, Integral) else float(value)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"a number is needed here, not a {type(value).__name__}") from None


def _power_of_two(exponent: int) -> Fraction:
    return Fraction(2**exponent) if exponent >= 0 else Fraction(1, 2**-exponent)


def _overflow_pattern(fmt: FloatFormat) -> int:
    # inf, if the format has it, comes right after the largest number
    return fmt.max_pattern + (fmt.specials == "ieee")
