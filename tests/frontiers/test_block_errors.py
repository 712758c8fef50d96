"""What was measured of rows, blocks and tensors, against torch's casts, gfloat,
exact fractions and plain float64.
"""

import math
import random
from fractions import Fraction

import gfloat
import gfloat.formats
import pytest
import torch

from amp_course.bits import FP4_E2M1, FP8_E4M3, FP8_E5M2
from amp_course.frontiers import BLOCK_FORMATS, MXFP4, NVFP4, BlockFormat
from amp_course.frontiers.block_errors import (
    INT8,
    block_line,
    format_errors,
    one_scale,
    row_errors,
    spread,
    weight_row,
    with_outlier,
)
from amp_course.frontiers.quantizing import blocks_of, quantize

GFLOAT = {
    FP8_E5M2: gfloat.formats.format_info_ocp_e5m2,
    FP8_E4M3: gfloat.formats.format_info_ocp_e4m3,
    FP4_E2M1: gfloat.formats.format_info_ocp_e2m1,
}
ROW = with_outlier(weight_row(), 37, 20.0)
WEIGHTS = 0.02 * torch.randn(4096, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
CHOICES = [
    BlockFormat("one", element, size, scale, rounding)
    for element in (FP4_E2M1, FP8_E4M3)
    for size in (4, 24, 64)
    for scale, rounding in ((None, "down"), (None, "nearest"), (None, "up"), (FP8_E4M3, "down"))
]


def numbers_of(element):
    """Return a format's finite numbers in order, as gfloat decodes them."""
    decoded = {gfloat.decode_float(GFLOAT[element], code).fval for code in range(2**element.bits)}
    return sorted(filter(math.isfinite, decoded))


def test_a_block_by_hand():
    """amax 7.9 → scale 2^(2−2) = 1: elements 0, 0.5, 1, 1.5, 2, 3, 4, 6."""
    row = row_errors([7.9, 0.2, -2.4, 0.0], MXFP4)
    assert row.rounded == [6.0, 0.0, -2.0, 0.0]
    assert row.scales == [1.0] * 4
    assert row.zeroed == [False, True, False, False]  # what was 0 did not become it
    assert row.clipped == [True, False, False, False]
    assert row.errors == pytest.approx([1.9 / 7.9, 1.0, 0.4 / 2.4, 0.0])
    assert row.filled == pytest.approx([7.9 / 6])
    assert row.error() == pytest.approx(
        math.sqrt((1.9**2 + 0.2**2 + 0.4**2) / (7.9**2 + 0.2**2 + 2.4**2))
    )
    assert row.error(without=0) == pytest.approx(math.sqrt((0.2**2 + 0.4**2) / (0.2**2 + 2.4**2)))
    assert row.zeroed_neighbours(0) == 1 and row.zeroed_neighbours(1) == 0
    assert row.sets_scale(0) and not row.sets_scale(2)


def test_what_is_within_half_a_step_of_the_largest_is_not_clipped():
    assert row_errors([6.9, 1.0], MXFP4).clipped == [False, False]  # 6 is the nearest anyway
    assert row_errors([7.1, 1.0], MXFP4).clipped == [True, False]
    assert not any(row_errors([7.1, 1.0], MXFP4.rounding_scale("nearest")).clipped)


@pytest.mark.parametrize(
    "fmt",
    CHOICES,
    ids=lambda f: f"{f.element.name} {f.size} {f.scale and f.scale.name} {f.rounding}",
)
def test_a_row_is_what_quantize_makes_of_it(fmt):
    row, tensor = row_errors(ROW, fmt), torch.tensor(ROW, dtype=torch.float64)
    assert row.rounded == quantize(tensor, fmt).tolist()
    assert sum(row.zeroed) == row.rounded.count(0)
    blocks = blocks_of(tensor, fmt)
    for start in range(0, 64, fmt.size):
        part = row.values[start : start + fmt.size]
        assert row.scales[start : start + fmt.size] == [row.scales[start]] * len(part)
        scale = Fraction(row.scales[start])
        assert row.scales[start] == blocks.scales[start // fmt.size]
        assert row.filled[start // fmt.size] == pytest.approx(
            float(Fraction(max(map(abs, part))) / scale / Fraction(fmt.element.max))
        )
        assert row.block(start + len(part) - 1) == range(start, start + len(part))
        # Clipped: a larger element, if there were one, would have been nearer than the largest.
        below, largest_element = map(Fraction, numbers_of(fmt.element)[-2:])
        following = 2 * largest_element - below
        for one in range(start, start + len(part)):
            scaled = abs(Fraction(ROW[one])) / scale
            assert row.clipped[one] == (scaled - largest_element > following - scaled)


@pytest.mark.parametrize("rounding", ["down", "nearest", "up"])
def test_only_a_scale_rounded_down_clips_an_fp4_outlier(rounding):
    fmt, clipped = MXFP4.rounding_scale(rounding), 0
    for times in torch.logspace(0, 1, 30).tolist():  # three times from one power of two to the next
        row = row_errors(with_outlier(weight_row(), 37, times), fmt)
        clipped += sum(row.clipped)
        assert rounding != "up" or max(row.filled) <= 1
    assert (clipped > 0) == (rounding == "down")


def test_a_scale_of_0_gives_zeros_and_nothing_clipped():
    row = row_errors([1.0] * 16 + [0.0] * 15 + [1e-9], NVFP4)
    assert row.scales[-1] == 0 and not any(row.rounded[16:])
    assert [*filter(row.zeroed.__getitem__, range(32))] == [31] and not any(row.clipped)
    assert row.filled == pytest.approx([1.0, 0.0], rel=1e-6)


@pytest.mark.parametrize("scale", [None, FP8_E4M3], ids=["E8M0", "E4M3"])
@pytest.mark.parametrize("element", [FP4_E2M1, FP8_E5M2], ids=lambda fmt: fmt.name)
def test_rounding_at_random_gives_either_neighbour_and_is_right_on_average(element, scale):
    fmt, row = BlockFormat("one", element, 8, scale), ROW[32:48]
    exact, draw = row_errors(row, fmt), random.Random(0).random
    draws = [row_errors(row, fmt, draw) for _ in range(100)]
    assert all(one.scales == exact.scales for one in draws)
    for place, value in enumerate(row):
        numbers = [one * exact.scales[place] for one in numbers_of(element)]
        inside = min(max(value, numbers[0]), numbers[-1])
        below = max(one for one in numbers if one <= inside)
        above = min(one for one in numbers if one >= inside)
        found = [one.rounded[place] for one in draws]
        assert {*found} <= {below, above}
        assert sum(found) / 100 == pytest.approx(inside, rel=1e-12, abs=0.2 * (above - below))


def test_an_outlier_is_measured_in_deviations_of_the_others():
    values = [1.0, 100.0, 3.0, 5.0]
    assert spread(values, 1) == pytest.approx(math.sqrt(8 / 3))
    assert with_outlier(values, 1, 10.0) == pytest.approx([1.0, 10 * math.sqrt(8 / 3), 3.0, 5.0])
    assert values[1] == 100


@pytest.mark.parametrize("element", [FP4_E2M1, FP8_E4M3], ids=lambda fmt: fmt.name)
def test_the_grid_of_a_block_is_gfloats_numbers_times_the_scale(element):
    drawn = block_line(weight_row(40), BlockFormat("one", element))  # all of them are one block
    assert len({*drawn.scales}) == 1
    assert drawn.grid == [one * drawn.scales[0] for one in numbers_of(element)]
    assert {*drawn.rounded} <= {*drawn.grid} and drawn.values == weight_row(40)


def test_with_one_scale_int8_is_int8_and_fp8_torchs_cast():
    assert (INT8.bits, INT8.max, INT8.smallest_subnormal) == (8, 127.0, 1.0)
    scale = float(WEIGHTS.abs().max())
    int8 = (WEIGHTS / scale * 127).round() * scale / 127
    fp8 = (WEIGHTS / scale * 448).float().to(torch.float8_e4m3fn).double() * scale / 448
    for element, wanted in ((INT8, int8), (FP8_E4M3, fp8)):
        got = quantize(WEIGHTS, one_scale(element, 4096))
        assert torch.allclose(got, wanted, rtol=1e-6, atol=0)


def tensors():
    generator = torch.Generator().manual_seed(1)
    sparse, numbers, powers = torch.randn(3, 8, 64, generator=generator)
    return {"activations": sparse.relu(), "gradients": numbers * torch.exp2(4 * powers)}


def test_each_format_is_measured_with_each_rounding():
    found = format_errors(tensors())
    of = [(one.format, one.rounding) for one in found if one.tensor == "gradients"]
    roundings = ("down", "nearest", "up")
    assert of == [
        *((fmt.name, rounding) for fmt in BLOCK_FORMATS[:5] for rounding in roundings),
        ("NVFP4", None),
        ("fp8 E4M3 per tensor", None),
        ("int8 per tensor", None),
    ]
    assert [one.tensor for one in found] == ["activations"] * 18 + ["gradients"] * 18
    formats = {fmt.name: fmt for fmt in BLOCK_FORMATS} | {"int8 per tensor": one_scale(INT8, 512)}
    for one in found:
        if one.format not in formats:
            continue
        x, fmt = tensors()[one.tensor].double(), formats[one.format]
        if one.format.startswith("int8"):
            x = x.flatten()
        rounded = quantize(x, fmt.rounding_scale(one.rounding or "down"))
        there = x != 0
        assert one.error == pytest.approx(float((rounded - x).norm() / x.norm()), rel=1e-6)
        assert one.zeroed == pytest.approx(float((rounded == 0)[there].double().mean()))
        assert one.bits == float(fmt.bits) and one.element == fmt.element.name


def test_a_tensor_of_zeros_has_no_error():
    found = format_errors({"zeros": torch.zeros(2, 8)})
    assert {(one.error, one.zeroed) for one in found} == {(0.0, 0.0)}
    assert row_errors([0.0] * 3, MXFP4).error() == 0.0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_bad_input_is_refused_with_a_reason(bad):
    with pytest.raises(ValueError, match="weights holds inf or NaN"):
        format_errors({"weights": torch.tensor([1.0, bad])})
    for row in ([1.0, bad], []):
        with pytest.raises(ValueError, match="no inf or NaN"):
            row_errors(row, MXFP4)
    with pytest.raises(TypeError, match="convert it with"):
        format_errors({"ids": torch.arange(4)})
