"""What is typed is read exactly or refused with a reason, and never hangs."""

import contextlib
import math
import time
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from amp_course.bits import formats as f
from amp_course.bits.formats import FORMATS
from amp_course.bits.nearest import exact_value
from amp_course.bits.parse import clip, hex_text, read
from amp_course.bits.scalar import encode


@pytest.mark.parametrize(
    ("text", "exact"),
    [
        ("  0.1 ", Fraction(1, 10)),
        ("+.5", Fraction(1, 2)),
        ("5.", 5),
        ("6.1E-5", Fraction(61, 10**6)),
        ("−3", -3),
        ("1_000", 1000),
        ("-1.5/1e2", Fraction(-3, 200)),
        ("-2**10", -1024),
        ("3*2^-24", Fraction(3, 2**24)),
        ("3 × 2^4", 48),
        ("1e999", Fraction(10) ** 999),
        ("0e99999999999", 0),
        ("-Infinity", -math.inf),
        ("+∞", math.inf),
    ],
)
def test_numbers_are_read_exactly(text, exact):
    entry = read(text, f.FP16)
    assert entry.exact == exact and entry.pattern == encode(exact, f.FP16)
    assert isinstance(entry.exact, Fraction) or exact in (math.inf, -math.inf)


@pytest.mark.parametrize("text", ["-0", "−0.0", "-0/7", "-0*2^3"])
def test_zero_keeps_its_sign(text):
    entry = read(text, f.FP16)
    assert entry.pattern == 0x8000 and math.copysign(1, entry.exact) == -1


def test_nan():
    assert read("NaN", f.FP16).pattern == read("-nan", f.FP16).pattern == 0x7E00
    with pytest.raises(ValueError, match="fp4 E2M1 has no NaN"):
        read("nan", f.FP4_E2M1)


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("0X3c", 0x3C),
        ("0b0 11110 0000_0000_00", 0x7800),
        ("0x7E01", 0x7E01),
    ],
)
def test_patterns(text, pattern):
    entry = read(text, f.FP16)
    assert entry.pattern == pattern
    assert entry.exact == exact_value(pattern, f.FP16) or pattern == 0x7E01


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "field is empty: type a number such as"),
        ("hello", "“hello” cannot be read as a number: type a number such as"),
        ("1,5", "write the decimal point as a point, 1.5"),
        ("1,000", "1.000, or thousands without a comma, 1000"),
        ("1 000", "leave out the separators, 1000"),
        ("1'000.5", "leave out the separators, 1000.5"),
        ("½", "write the fraction as 1/2 or 0.5"),
        ("3C00", "a hex pattern starts with 0x: 0x3C00"),
        ("0x", "is not a bit pattern: 0x is followed by 0-9 and A-F"),
        ("0b2", "0b only by 0 and 1"),
        ("-0x1", "no sign goes in front: the first bit is the sign"),
        ("0x10000", "needs 17 bits and fp16 has 16: choose tf32, or type one up to 0xFFFF"),
        ("0x" + "F" * 99, "needs 396 bits and fp16 has 16: type one up to 0xFFFF"),
        ("1e9999999999", "is beyond 10^±5000, the limit here: type 1e999, which rounds to inf"),
        ("-1e9999999999", "type -1e999, which rounds to -inf"),
        ("1e-999999", "type 1e-999, which rounds to 0"),
        ("2^99999", "is beyond 2^±16384"),
        ("1/0", "divides by zero"),
        ("--1", "cannot be read as a number"),
        ("٣", "cannot be read as a number"),
        ("1" * 1001, "1,001 characters are too many"),
    ],
)
def test_what_cannot_be_read_is_refused_with_cause_and_cure(text, words):
    with pytest.raises(ValueError) as caught:
        read(text, f.FP16)
    assert words in str(caught.value)
    assert len(str(caught.value)) < 260


@pytest.mark.parametrize(
    "text",
    [
        "1e-9999999999",
        "1e5000/1e-5000",
        "9" * 900 + "*2^16384",
    ],
)
def test_nothing_hangs(text):
    began = time.perf_counter()
    for fmt in (f.FP64, f.FP4_E2M1):
        with contextlib.suppress(ValueError):
            read(text, fmt)
    assert time.perf_counter() - began < 0.5


alphabet = st.text(alphabet="0123456789+-−.,eExXbBaAfFnN_/^*×∞½ \t", max_size=24)


@given(st.one_of(alphabet, st.text(max_size=40)), st.sampled_from(FORMATS))
@example("²", f.FP16)
@example("0x²", f.FP16)
@example("1e+", f.FP16)
def test_any_text_is_read_or_refused_and_nothing_else(text, fmt):
    try:
        pattern, exact = read(text, fmt)
    except ValueError as error:
        assert str(error)
        return
    assert 0 <= pattern < 2**fmt.bits
    assert exact != exact or encode(exact, fmt) == pattern


@given(st.integers(), st.integers(0, 10**30), st.integers(-4000, 4000))
def test_any_decimal_is_read_as_fractions_reads_it(whole, part, power):
    text = f"{whole}.{part}e{power}"
    assert read(text, f.FP64).exact == Fraction(text)


@given(st.floats(allow_nan=False))
def test_python_s_own_floats_come_back(number):
    entry = read(repr(number), f.FP64)
    assert entry.pattern == encode(number, f.FP64)


def test_hex_has_all_digits_of_the_format():
    formats = (f.TF32, f.FP16, f.FP6_E3M2, f.FP4_E2M1)
    assert [hex_text(1, fmt) for fmt in formats] == ["0x00001", "0x0001", "0x01", "0x1"]


def test_long_texts_are_cut_in_the_middle():
    assert clip("1" * 20) == "1" * 20
    assert len(clip("1" * 500 + "end")) == 32 and clip("1" * 500 + "end").endswith("…11111end")
