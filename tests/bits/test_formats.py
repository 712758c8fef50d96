"""Formats against torch.finfo and ml_dtypes.finfo, and what they refuse."""

import math
import re
import tokenize
from pathlib import Path

import ml_dtypes
import pytest
import torch

from amp_course.bits import formats as f
from amp_course.bits.formats import FORMATS, FloatFormat, find_format
from amp_course.bits.scalar import decode, encode
from tests.bits.oracles import ML_DTYPES

IN_TORCH = [fmt for fmt in FORMATS if fmt.dtype]


@pytest.mark.parametrize("fmt", IN_TORCH, ids=lambda fmt: fmt.name)
def test_derived_numbers_equal_torch_finfo(fmt):
    info = torch.finfo(fmt.dtype)
    assert (fmt.max, -fmt.max, fmt.smallest_normal, fmt.eps) == (
        info.max,
        info.min,
        info.tiny,
        info.eps,
    )
    assert fmt.bits == info.bits
    if fmt.dtype.itemsize > 1:  # for fp8 torch gives the smallest normal here
        assert fmt.smallest_subnormal == math.ldexp(info.tiny, -fmt.significand_bits)


@pytest.mark.parametrize("fmt", ML_DTYPES, ids=lambda fmt: fmt.name)
def test_derived_numbers_equal_ml_dtypes_finfo(fmt):
    info = ml_dtypes.finfo(ML_DTYPES[fmt])
    assert fmt.max == float(info.max) and fmt.eps == float(info.eps)
    assert fmt.smallest_normal == float(info.smallest_normal)
    assert fmt.smallest_subnormal == float(info.smallest_subnormal)
    assert fmt.bits == info.bits and (fmt.exponent_bits, fmt.significand_bits) == (
        info.nexp,
        info.nmant,
    )


def test_tf32_which_no_library_has():
    fmt = find_format("tf32")
    assert (fmt.exponent_bits, fmt.significand_bits) == (8, 10)
    assert fmt.max == pytest.approx(3.4011e38, rel=2e-5)
    assert (fmt.smallest_normal, fmt.smallest_subnormal) == (2.0**-126, 2.0**-136)


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
def test_decimal_digits_survive_the_way_in_and_out(fmt):
    """Every decimal of so many digits near 1 comes back."""
    digits = fmt.decimal_digits
    if 0 < digits < 8:
        unit = 10 ** (digits - 1)
        for number in range(unit, min(10 * unit, unit + 1000)):
            decimal = f"{number / unit:.{digits - 1}f}"
            assert f"{decode(encode(number / unit, fmt), fmt):.{digits - 1}f}" == decimal
    assert digits == math.floor(math.log10(2**fmt.significand_bits))


def test_custom_widths():
    own = FloatFormat.of(5, 10)
    assert (own.max, own.bias, own.name) == (f.FP16.max, f.FP16.bias, "E5M10")
    assert FloatFormat.of(4, 3).max == 240.0  # as IEEE would have it
    assert FloatFormat.of(4, 3, "fn").max == f.FP8_E4M3.max == 448.0
    assert FloatFormat.of(2, 1, "finite").max == f.FP4_E2M1.max
    assert FloatFormat.of(1, 2, "finite").max == 3.5  # one normal binade: 2 to 3.5


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((0, 10), "0 exponent bits"),
        ((12, 10), "12 exponent bits"),
        ((1, 10), "takes 2 to 11"),
        ((5, 0), "0 significand bits"),
        ((5, 53), "53 significand bits"),
        ((11, 3, "finite"), "take fewer bits"),
        ((5, 10, "IEEE"), "unknown specials 'IEEE'"),
    ],
)
def test_widths_outside_of_fp64_and_unknown_specials_are_refused(arguments, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        FloatFormat.of(*arguments)


def test_a_bias_that_leaves_fp64_and_widths_that_are_no_ints_are_refused():
    for bias in (5000, -1020):
        with pytest.raises(ValueError, match=f"bias of {bias}"):
            FloatFormat("far", 5, 10, bias)
    for widths in ((5.0, 10), ("5", 10), (5, 10.5)):
        with pytest.raises(TypeError, match="has to be an int"):
            FloatFormat.of(*widths)


def test_find_format():
    assert (
        find_format("bf16") is f.BF16
        and find_format(torch.float16) is f.FP16
        and find_format(f.TF32) is f.TF32
    )
    for unknown in ("fp17", torch.int8, [], None):
        with pytest.raises(ValueError, match="the course has fp64, fp32"):
            find_format(unknown)


def test_no_other_module_spells_a_format_constant():
    """House rule 3: 65504, 2^-24 and the like belong to FloatFormat alone. Docstrings and messages
    may name them, and the cases of exercises are an independent oracle.
    """
    spelled = re.compile(
        r"\b65_?504|\b65_?520|\b57_?344|\b2\.?0?\s*\*\*\s*-\s*(14|24|126|133|149)\b|\b5\.96\d*e-0?8"
    )
    root = Path(f.__file__).parents[2]
    found = []
    for path in [*root.glob("amp_course/**/*.py"), *root.glob("benchmarks/*.py")]:
        text = path.read_text(encoding="utf-8")
        is_exempt = path == Path(f.__file__) or path.parent.name == "exercises"
        if is_exempt or not spelled.search(text):
            continue
        with path.open("rb") as file:
            for token in tokenize.tokenize(file.readline):
                if token.type == tokenize.NUMBER and spelled.search(token.line.split("#")[0]):
                    found.append(f"{path.relative_to(root)}:{token.start[0]}: {token.line.strip()}")
    assert found == []
