"""Formats against torch.finfo and ml_dtypes.finfo, and what they refuse."""

import math
import re
from pathlib import Path

import ml_dtypes
import pytest
import torch

from amp_course.bits import formats as f
from amp_course.bits.formats import FORMATS, FloatFormat, find_format

IN_TORCH = [fmt for fmt in FORMATS if fmt.dtype]
IN_ML_DTYPES = {
    f.BF16: ml_dtypes.bfloat16,
    f.FP8_E4M3: ml_dtypes.float8_e4m3fn,
    f.FP8_E5M2: ml_dtypes.float8_e5m2,
    f.FP6_E2M3: ml_dtypes.float6_e2m3fn,
    f.FP6_E3M2: ml_dtypes.float6_e3m2fn,
    f.FP4_E2M1: ml_dtypes.float4_e2m1fn,
}


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


@pytest.mark.parametrize("fmt", IN_ML_DTYPES, ids=lambda fmt: fmt.name)
def test_derived_numbers_equal_ml_dtypes_finfo(fmt):
    info = ml_dtypes.finfo(IN_ML_DTYPES[fmt])
    assert fmt.max == float(info.max) and fmt.eps == float(info.eps)
    assert fmt.smallest_normal == float(info.smallest_normal)
    assert fmt.smallest_subnormal == float(info.smallest_subnormal)
    assert fmt.bits == info.bits and (fmt.exponent_bits, fmt.significand_bits) == (
        info.nexp,
        info.nmant,
    )


def test_published_table():
    """FACTS.md: exponent and significand bits, largest, smallest normal, smallest subnormal."""
    table = {
        "fp32": (8, 23, 3.4028e38, -126, -149),
        "tf32": (8, 10, 3.4011e38, -126, -136),
        "bf16": (8, 7, 3.3895e38, -126, -133),
        "fp16": (5, 10, 65504, -14, -24),
        "fp8 E4M3": (4, 3, 448, -6, -9),
        "fp8 E5M2": (5, 2, 57344, -14, -16),
    }
    for name, (exponent, significand, largest, normal, subnormal) in table.items():
        fmt = find_format(name)
        assert (fmt.exponent_bits, fmt.significand_bits) == (exponent, significand)
        assert fmt.max == pytest.approx(largest, rel=2e-5)
        assert (fmt.smallest_normal, fmt.smallest_subnormal) == (2.0**normal, 2.0**subnormal)


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
def test_decimal_digits_survive_the_way_in_and_out(fmt):
    """Every decimal of so many digits near 1 comes back, and with one more some do not."""
    from amp_course.bits.scalar import decode, encode

    def survive(digits):
        numbers = range(10 ** (digits - 1), min(10**digits, 10 ** (digits - 1) + 3000))
        return all(
            f"{decode(encode(number / 10 ** (digits - 1), fmt), fmt):.{digits - 1}f}"
            == f"{number / 10 ** (digits - 1):.{digits - 1}f}"
            for number in numbers
        )

    if 0 < fmt.decimal_digits < 8:
        assert survive(fmt.decimal_digits)
    assert fmt.decimal_digits == math.floor(math.log10(2**fmt.significand_bits))


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
        ((5, -1, "finite"), "-1 significand bits"),
        ((1, 0, "fn"), "1 exponent bits"),
        ((11, 3, "finite"), "take fewer bits"),
    ],
)
def test_widths_outside_of_fp64_are_refused(arguments, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        FloatFormat.of(*arguments)


def test_a_bias_that_leaves_fp64_is_refused():
    with pytest.raises(ValueError, match="bias of 5000"):
        FloatFormat("far", 5, 10, 5000)
    with pytest.raises(ValueError, match="bias of -1020"):
        FloatFormat("far", 5, 10, -1020)


def test_unknown_specials_and_widths_that_are_no_ints_are_refused():
    with pytest.raises(ValueError, match="unknown specials 'IEEE'"):
        FloatFormat.of(5, 10, "IEEE")
    for widths in ((5.0, 10), ("5", 10), (5, True), (5, 10.5)):
        with pytest.raises(TypeError, match="has to be an int"):
            FloatFormat.of(*widths)
    with pytest.raises(TypeError, match=r"bias has to be an int, not 15\.5"):
        FloatFormat("odd", 5, 10, 15.5)


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
    """House rule 3: 65504, 2^-24 and the like belong to FloatFormat alone;
    the cases of exercises are an independent oracle.
    """
    spelled = re.compile(
        r"\b65_?504|\b65_?520|\b57_?344|2\.?0?\s*\*\*\s*-\s*(14|24|126|133|149)\b|5\.96\d*e-0?8|6\.1\d*e-0?5|3\.4\d*e\+?38|3\.39\d*e\+?38"
    )
    root = Path(f.__file__).parents[2]
    found = []
    for path in [*root.glob("amp_course/**/*.py"), *root.glob("benchmarks/*.py")]:
        if path == Path(f.__file__) or path.parent.name == "exercises":
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            code = line.split("#")[0]
            if spelled.search(code) and not _is_prose(path, number):
                found.append(f"{path.relative_to(root)}:{number}: {line.strip()}")
    assert found == []


def _is_prose(path, number):
    """Docstrings and messages may name a number; code may not."""
    import ast

    tree = ast.parse(path.read_text(encoding="utf-8"))
    return any(
        isinstance(node, (ast.Constant, ast.JoinedStr))
        and (isinstance(node, ast.JoinedStr) or isinstance(node.value, str))
        and node.lineno <= number <= node.end_lineno
        for node in ast.walk(tree)
    )
