"""Write exact numbers for people: short decimals in full, powers of two for tiny and huge ones.

Minus signs are real ones, exponents superscripts, and “≈” precedes whatever is not exact.
"""

from __future__ import annotations

import math
from decimal import Context, Decimal
from fractions import Fraction

from amp_course.bits.nearest import Exact, is_finite, is_nan

DIGITS = 17  # enough to tell any two fp64 numbers apart
_PLAIN = range(-5, DIGITS)  # the powers of ten of a leading digit that are written without × 10ⁿ
_ODD_PART = 4096  # k × 2ⁿ is shorter than a decimal for k up to about here
_SHORT, _SMALL_ODD_PART = 10, 100  # a longer decimal is typed as k*2^n if k is below this
_RAISED = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


def number_text(value: Exact, digits: int = DIGITS) -> str:
    """Write a number as people read it: 0.5 → "0.5", 2^−24 → "2⁻²⁴ ≈ 5.9605 × 10⁻⁸"."""
    if special := _special(value):
        return special
    number = Fraction(value)
    decimal, exact = decimal_text(number, digits)
    if exact and "×" not in decimal:
        return decimal
    if power := power_text(number):
        return f"{power} ≈ {decimal_text(number, 5)[0]}"
    return decimal if exact else f"≈ {decimal}"


def short_text(value: Exact) -> str:
    """Write a number briefly, as a power of two if it is one: 2^−24 → "2⁻²⁴"."""
    return number_text(value).split(" ≈ ")[0]


def full_text(value: Exact) -> str:
    """Write all digits of a finite binary number, or k × 2ⁿ if there are more than 60."""
    number = Fraction(value)
    decimal, exact = decimal_text(number, 60, plain=range(-60, 60))
    return decimal if exact else _product(*odd_part(number))


def decimal_text(number: Fraction, digits: int, plain: range = _PLAIN) -> tuple[str, bool]:
    """Return a decimal of that many digits, and True if it is exact: 1/3, 2 → ("0.33", False)."""
    context = Context(prec=digits, Emin=-999_999, Emax=999_999)
    rounded = context.divide(Decimal(number.numerator), Decimal(number.denominator))
    rounded = rounded.normalize(context)
    exact = Fraction(rounded) == number
    sign = "−" if rounded.is_signed() else ""
    power = rounded.adjusted() if rounded else 0
    if power in plain:
        return f"{sign}{rounded.copy_abs():f}", exact
    significand = f"{rounded.copy_abs().scaleb(-power, context):f}"
    factor = "" if significand == "1" else f"{significand} × "
    return f"{sign}{factor}10{raised(power)}", exact


def power_text(number: Fraction) -> str:
    """Write k × 2ⁿ with a small odd k, or "" for any other number: 3/2^24 → "3 × 2⁻²⁴"."""
    if not number or number.denominator.bit_count() > 1:
        return ""
    odd, exponent = odd_part(number)
    return _product(odd, exponent) if abs(odd) < _ODD_PART else ""


def _product(odd: int, exponent: int) -> str:
    factor = f"{signed(odd)} × " if abs(odd) > 1 else "−" if odd < 0 else ""
    return f"{factor}2{raised(exponent)}"


def odd_part(number: Fraction) -> tuple[int, int]:
    """Split a binary number, not 0, into an odd integer and an exponent of two: 12 → (3, 2)."""
    twos = (number.numerator & -number.numerator).bit_length() - 1
    return number.numerator >> twos, twos - (number.denominator.bit_length() - 1)


def typed_text(value: Exact) -> str:
    """Write a format's value briefly, so that `parse.read` reads it back: 2^−14 → "2^-14"."""
    if special := _special(value):
        return special.replace("−", "-")
    number = Fraction(value)
    decimal, exact = decimal_text(number, DIGITS)
    odd, exponent = odd_part(number) if number else (0, 0)
    plain = exact and "×" not in decimal
    if plain and (len(decimal) <= _SHORT or abs(odd) >= _SMALL_ODD_PART):
        return decimal.replace("−", "-")
    if abs(odd) < _ODD_PART:
        factor = f"{odd}*" if abs(odd) > 1 else "-" if odd < 0 else ""
        return f"{factor}2^{exponent}"
    return repr(float(number))


def signed(number: int) -> str:
    """Write an int with a true minus sign: -14 → "−14"."""
    return str(number).replace("-", "−")


def raised(exponent: int) -> str:
    """Write an exponent as superscript: -24 → "⁻²⁴"."""
    return str(exponent).translate(_RAISED)


def _special(value: Exact) -> str:
    if is_nan(value):
        return "NaN"
    if not is_finite(value):
        return "inf" if value > 0 else "−inf"
    return "−0" if isinstance(value, float) and value == 0 and math.copysign(1, value) < 0 else ""
