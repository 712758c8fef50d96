"""How numbers are written: what is not marked “≈” is exact,
and what is written for typing reads back.
"""

import math
import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amp_course.bits.formats import FORMATS, FP16, FP32, FP64
from amp_course.bits.nearest import exact_value
from amp_course.bits.numerals import (
    decimal_text,
    full_text,
    number_text,
    power_text,
    short_text,
    typed_text,
)
from amp_course.bits.parse import read

LOWERED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻−", "0123456789--")


def meaning(text):
    """Read what was written for people: "3 × 2⁻²⁴" → Fraction(3, 2^24)."""
    found = re.fullmatch(r"(−?)(?:([\d.]+))?(?: × )?(?:(2|10)([⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+))?", text)
    if found is None:
        raise AssertionError(text)
    sign, mantissa, base, power = found.groups()
    if base is None and mantissa and (raised := re.search("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+$", text)):
        raise AssertionError(raised)
    number = Fraction(mantissa or 1)
    if base:
        number *= Fraction(int(base)) ** int(power.translate(LOWERED))
    return -number if sign else number


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Fraction(0), "0"),
        (-0.0, "−0"),
        (Fraction(2048), "2048"),
        (Fraction("0.0999755859375"), "0.0999755859375"),
        (Fraction(-1, 2), "−0.5"),
        (Fraction(0.1), "≈ 0.10000000000000001"),
        (Fraction(1, 3), "≈ 0.33333333333333333"),
        (Fraction(1, 2**24), "2⁻²⁴ ≈ 5.9605 × 10⁻⁸"),
        (Fraction(-3, 2**24), "−3 × 2⁻²⁴ ≈ −1.7881 × 10⁻⁷"),
        (Fraction(2**100), "2¹⁰⁰ ≈ 1.2677 × 10³⁰"),
        (Fraction(10**999), "10⁹⁹⁹"),
        (Fraction(FP32.max), "≈ 3.4028234663852886 × 10³⁸"),
        (math.inf, "inf"),
        (-math.inf, "−inf"),
        (math.nan, "NaN"),
    ],
)
def test_number_text(value, text):
    assert number_text(value) == text
    assert short_text(value) == text.split(" ≈ ")[0]


@given(st.sampled_from(FORMATS), st.data())
def test_what_is_not_marked_as_rounded_is_exact(fmt, data):
    value = exact_value(data.draw(st.integers(0, fmt.max_pattern)), fmt)
    text = number_text(value)
    first, _, rest = text.partition("≈ ")
    if first:
        assert meaning(first.strip()) == value
    if rest:
        assert abs(meaning(rest) / value - 1) < Fraction(1, 10**4)
    assert meaning(full_text(value)) == value
    assert "e" not in text and "-" not in text


@given(st.fractions(), st.integers(1, 30))
def test_decimals_say_whether_they_are_exact(number, digits):
    text, exact = decimal_text(number, digits)
    assert (meaning(text) == number) == exact
    assert abs(meaning(text) - number) * 10 ** (digits - 1) * 2 <= abs(number) * 10


@given(st.sampled_from(FORMATS), st.data())
def test_what_is_written_for_typing_reads_back_to_the_same_pattern(fmt, data):
    pattern = data.draw(st.integers(0, 2**fmt.bits - 1))
    value = exact_value(pattern, fmt)
    if value == value:
        assert read(typed_text(value), fmt).pattern == pattern


def test_typed_text_is_short_where_a_person_would_be():
    assert [typed_text(Fraction(x)) for x in (0.5, -2048, 2.0**-24, -3 * 2.0**-24)] == [
        "0.5",
        "-2048",
        "2^-24",
        "-3*2^-24",
    ]
    assert typed_text(-0.0) == "-0" and typed_text(-math.inf) == "-inf"


def test_power_text_is_for_small_odd_parts_alone():
    assert power_text(Fraction(12)) == "3 × 2²"
    assert (
        power_text(Fraction(1, 3)) == ""
        and power_text(Fraction(0)) == ""
        and power_text(Fraction(4097)) == ""
    )


def test_full_text_never_rounds():
    assert full_text(Fraction(0.1)) == "0.1000000000000000055511151231257827021181583404541015625"
    assert full_text(Fraction(FP16.smallest_subnormal)) == "0.000000059604644775390625"
    assert full_text(Fraction(FP64.smallest_subnormal)) == "2⁻¹⁰⁷⁴"
    assert full_text(Fraction(FP32.max)) == str(int(FP32.max))
