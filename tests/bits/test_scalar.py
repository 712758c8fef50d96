"""Every pattern of the small formats against torch and ml_dtypes;
the rest against exact fractions.
"""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from amp_course.bits import formats as f
from amp_course.bits.formats import FloatFormat
from amp_course.bits.scalar import (
    decode,
    encode,
    floor_log2,
    kind,
    nan_pattern,
    neighbours,
    split,
    ulp,
)
from tests.bits.oracles import (
    ML_DTYPES,
    all_values,
    midpoints,
    same,
    torch_cast,
    torch_saturates_e4m3,
)

FP8 = [f.FP8_E4M3, f.FP8_E5M2]
OCP = [f.FP6_E3M2, f.FP6_E2M3, f.FP4_E2M1]
ID = {"ids": lambda fmt: fmt.name}


@pytest.mark.parametrize("fmt", [f.FP16, f.BF16, *FP8, *OCP], **ID)
def test_every_pattern_decodes_as_in_torch_or_else_ml_dtypes(fmt):
    assert same([decode(pattern, fmt) for pattern in range(2**fmt.bits)], all_values(fmt))


@pytest.mark.parametrize("fmt", [f.FP16, f.BF16, *FP8, *OCP], **ID)
def test_patterns_encode_back(fmt):
    """Every pattern of a small format, and every seventh of one of 16 bits."""
    for pattern in range(0, 2**fmt.bits, 7 if fmt.bits == 16 else 1):
        value = decode(pattern, fmt)
        assert encode(value, fmt) == (nan_pattern(fmt) if math.isnan(value) else pattern)


@pytest.mark.parametrize("fmt", [f.FP16, f.BF16], **ID)
def test_midpoints_and_their_fp32_neighbours_encode_as_torch_casts(fmt):
    """Every seventh of them: `round_to`, the fast twin, is tested on all."""
    numbers = midpoints(fmt)[::7]
    wanted = (torch.tensor(numbers).to(fmt.dtype).view(torch.int16).int() & 0xFFFF).tolist()
    assert [encode(number, fmt) for number in numbers.tolist()] == wanted


@pytest.mark.parametrize("fmt", [*FP8, *OCP], **ID)
def test_every_midpoint_and_its_fp32_neighbours_encode_as_ml_dtypes_casts(fmt):
    numbers = midpoints(fmt)
    if fmt is f.FP8_E4M3:
        numbers = numbers[
            np.abs(numbers) <= 464
        ]  # past it ml_dtypes has NaN, and we the largest: see below
    wanted = numbers.astype(ML_DTYPES[fmt]).view(np.uint8) & (2**fmt.bits - 1)
    assert same(
        [decode(encode(number, fmt), fmt) for number in numbers.tolist()],
        [decode(int(pattern), fmt) for pattern in wanted],
    )


def test_fp32_and_fp64_are_read_as_the_machine_reads_them():
    rng = np.random.default_rng()
    for fmt, unsigned, floating in (
        (f.FP32, np.uint32, np.float32),
        (f.FP64, np.uint64, np.float64),
    ):
        patterns = rng.integers(0, 2**fmt.bits, 3000, dtype=np.uint64).astype(unsigned)
        with np.errstate(invalid="ignore"):  # a signalling NaN
            values = patterns.view(floating).astype(np.float64)
        assert same([decode(int(pattern), fmt) for pattern in patterns], values)
        finite = np.isfinite(values)
        assert [encode(float(v), fmt) for v in values[finite]] == [int(p) for p in patterns[finite]]


def test_specials():
    assert decode(0x8000, f.FP16) == 0 and math.copysign(1, decode(0x8000, f.FP16)) == -1
    assert encode(-0.0, f.FP16) == 0x8000 and encode(0, f.FP16) == encode(Fraction(0), f.FP16) == 0
    assert encode(math.inf, f.FP16) == 0x7C00 and encode(-math.inf, f.BF16) == 0xFF80
    assert encode(math.nan, f.FP16) == 0x7E00 and encode(math.nan, f.BF16) == 0x7FC0
    assert (
        encode(math.nan, f.FP8_E4M3) == 0x7F and encode(math.inf, f.FP8_E4M3) == 0x7E
    )  # no inf there: the largest
    assert encode(-math.inf, f.FP4_E2M1) == 0xF and decode(0xF, f.FP4_E2M1) == -6.0
    with pytest.raises(ValueError, match="fp4 E2M1 has no NaN"):
        encode(math.nan, f.FP4_E2M1)


def test_past_464_e4m3_saturates_here_and_is_nan_in_ml_dtypes_and_torch_does_one_of_the_two():
    past = [464.0, 464.1, 500.0, 1e30, math.inf, -math.inf]
    ours = [decode(encode(number, f.FP8_E4M3), f.FP8_E4M3) for number in past]
    assert ours == [448.0] * 5 + [-448.0]
    theirs = np.array(past, dtype=np.float32).astype(ML_DTYPES[f.FP8_E4M3]).astype(np.float64)
    assert theirs[0] == 448.0 and np.isnan(theirs[1:]).all()
    cast = torch_cast(np.array(past, dtype=np.float32), f.FP8_E4M3)
    assert same(cast, ours if torch_saturates_e4m3() else theirs)


def test_kinds():
    expected = {
        "zero": (0, 0x8000),
        "subnormal": (1, 0x3FF),
        "normal": (0x400, 0x7BFF),
        "infinity": (0x7C00, 0xFC00),
        "NaN": (0x7C01,),
    }
    for what, patterns in expected.items():
        assert {kind(pattern, f.FP16) for pattern in patterns} == {what}
    assert kind(0x7E, f.FP8_E4M3) == "normal" and kind(0xFF, f.FP8_E4M3) == "NaN"
    assert kind(0xF, f.FP4_E2M1) == "normal"


def test_exact_decimals_are_not_rounded_twice():
    """1 + 2^-11 + 2^-60 is past fp16's midpoint, and a Python float would drop the 2^-60."""
    value = 1 + Fraction(1, 2**11) + Fraction(1, 2**60)
    assert decode(encode(value, f.FP16), f.FP16) == 1 + f.FP16.eps
    assert decode(encode(float(value), f.FP16), f.FP16) == 1.0
    assert (
        encode(Fraction(10) ** 999, f.FP16) == 0x7C00 and encode(-(10**400), f.FP64) == 0xFFF << 52
    )
    assert encode(Fraction(1, 10**999), f.FP64) == 0


@given(st.integers(2, 11), st.integers(1, 52), st.floats(allow_nan=False, allow_infinity=False))
def test_any_widths_round_to_the_nearest_value(exponent_bits, significand_bits, value):
    fmt = FloatFormat.of(exponent_bits, significand_bits)
    pattern = encode(value, fmt)
    got = decode(pattern, fmt)
    if math.isinf(got):
        assert abs(Fraction(value)) >= Fraction(fmt.max) + Fraction(ulp(fmt.max, fmt)) / 2
        return
    below, above = neighbours(pattern, fmt)
    for other in (below, above):
        if math.isfinite(other):
            distance, others = (
                abs(Fraction(value) - Fraction(got)),
                abs(Fraction(value) - Fraction(other)),
            )
            assert distance < others or (distance == others and pattern % 2 == 0)


@pytest.mark.parametrize("fmt", [*FP8, *OCP], **ID)
def test_neighbours_stand_in_order(fmt):
    last = fmt.max_pattern + (fmt.specials == "ieee")
    half = 2 ** (fmt.bits - 1)
    line = [*range(half + last, half, -1), 0, *range(1, last + 1)]  # −0 and 0 are one value
    values = [decode(pattern, fmt) for pattern in line]
    assert values == sorted(values)
    for n, pattern in enumerate(line[1:-1], 1):
        assert neighbours(pattern, fmt) == (values[n - 1], values[n + 1])
    assert neighbours(half, fmt) == neighbours(0, fmt)
    assert math.isnan(neighbours(line[-1], fmt)[1]) or fmt.specials == "ieee"


def test_neighbours_of_the_ends():
    assert neighbours(0x7BFF, f.FP16) == (65472.0, math.inf)
    assert neighbours(0x7C00, f.FP16) == (65504.0, math.inf)  # nothing is above inf
    assert neighbours(0xFC00, f.FP16) == (-math.inf, -65504.0)
    assert all(math.isnan(value) for value in neighbours(0x7E00, f.FP16))
    below, above = neighbours(0x7E, f.FP8_E4M3)
    assert below == 416.0 and math.isnan(above)


def test_ulp_is_the_machines_for_fp64_and_torch_nextafter_for_fp16():
    for value in (0.0, 1.0, -1.5, 5e-324, 1e-310, 0.1, 1e300, math.pi):
        assert ulp(value, f.FP64) == math.ulp(value)
    for pattern in range(0, f.FP16.max_pattern, 7):
        assert ulp(decode(pattern, f.FP16), f.FP16) == neighbours(pattern, f.FP16)[1] - decode(
            pattern, f.FP16
        )


def test_ulp_doubles_at_powers_of_two_and_is_flat_below_the_smallest_normal():
    just_below = float(np.nextafter(2048.0, 0))
    assert (ulp(2048, f.FP16), ulp(just_below, f.FP16)) == (2.0, 1.0)
    for small in (0, 1e-6, f.FP16.smallest_normal):
        assert ulp(small, f.FP16) == f.FP16.smallest_subnormal
    assert ulp(65519, f.FP16) == 32.0
    assert ulp(65520, f.FP16) == ulp(math.inf, f.FP16) == math.inf
    assert math.isnan(ulp(math.nan, f.FP16))
    assert ulp(500, f.FP8_E4M3) == ulp(math.inf, f.FP8_E4M3) == 32.0 and ulp(1e9, f.FP4_E2M1) == 2.0
    assert ulp(10**400, f.FP64) == math.inf
    assert ulp(1 - Fraction(1, 10**30), f.FP16) == 2.0**-11  # exact: a float would be 1


def test_a_pattern_outside_the_format_is_refused():
    for pattern in (-1, 2**16):
        with pytest.raises(ValueError, match="outside fp16, whose 16 bits go from 0x0 to 0xffff"):
            decode(pattern, f.FP16)
    assert decode(np.uint16(0x3C00), f.FP16) == 1.0
    for pattern in (1.0, "0x3C00", True, None):
        with pytest.raises(TypeError, match="a pattern is an int"):
            split(pattern, f.FP16)


def test_numbers_of_any_kind_are_taken_and_nothing_else():
    for one_and_a_half in (np.float32(1.5), torch.tensor(1.5), Fraction(3, 2)):
        assert encode(one_and_a_half, f.FP16) == 0x3E00
        assert ulp(one_and_a_half, f.FP16) == f.FP16.eps
    assert encode(np.int64(7), f.FP16) == encode(7, f.FP16) == 0x4700
    assert encode(np.float32(-0.0), f.FP16) == 0x8000
    for nonsense in ("1.5", None, 1j, [1.0], torch.ones(2)):
        with pytest.raises(TypeError, match="a number is needed here, not a"):
            encode(nonsense, f.FP16)


def test_without_significand_bits_a_tie_goes_up():
    fmt = FloatFormat.of(2, 0, "finite")
    # below the smallest number there is zero, and it is even
    for value, nearest in ((0.5, 0.0), (1.0, 1.0), (1.5, 2.0), (3.0, 4.0)):
        assert decode(encode(value, fmt), fmt) == nearest


def test_floor_log2():
    for value, exponent in ((Fraction(1, 3), -2), (Fraction(1, 4), -2), (255, 7), (256, 8)):
        assert floor_log2(Fraction(value)) == exponent
