"""What was measured of rows, blocks and tensors, against torch's casts, gfloat,
exact fractions and plain float64.
"""

import math
import random
from collections.abc import Sequence
from fractions import Fraction

import gfloat
import gfloat.formats
import pytest
import torch

from amp_course.bits import FP4_E2M1, FP6_E2M3, FP6_E3M2, FP8_E4M3, FP8_E5M2, FloatFormat
from amp_course.frontiers import (
    BLOCK_FORMATS,
    MXFP4,
    MXFP8_E4M3,
    MXFP8_E5M2,
    NVFP4,
    BlockFormat,
)
from amp_course.frontiers.block_errors import (
    INT8,
    block_line,
    format_errors,
    one_scale,
    relative_error,
    row_errors,
    spread,
    weight_row,
    with_outlier,
)
from amp_course.frontiers.quantizing import blocks_of, quantize
from amp_course.frontiers.reference import quantize_block

GFLOAT = {
    FP8_E5M2: gfloat.formats.format_info_ocp_e5m2,
    FP8_E4M3: gfloat.formats.format_info_ocp_e4m3,
    FP6_E3M2: gfloat.formats.format_info_ocp_e3m2,
    FP6_E2M3: gfloat.formats.format_info_ocp_e2m3,
    FP4_E2M1: gfloat.formats.format_info_ocp_e2m1,
}
ROW = with_outlier(weight_row(), 37, 20.0)
WEIGHTS = 0.02 * torch.randn(4096, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
CHOICES = [
    BlockFormat("one", element, size, scale, rounding)
    for element in (FP4_E2M1, FP6_E3M2, FP8_E4M3)
    for size in (4, 24, 32, 64)
    for scale, rounding in ((None, "down"), (None, "nearest"), (None, "up"), (FP8_E4M3, "down"))
]


def numbers_of(element: FloatFormat) -> list[float]:
    """Return a format's finite numbers in order, as gfloat decodes them."""
    decoded = {gfloat.decode_float(GFLOAT[element], code).fval for code in range(2**element.bits)}
    return sorted(filter(math.isfinite, decoded))


def exact_blocks(values: torch.Tensor, fmt: BlockFormat) -> list[list[float]]:
    return [part.tolist() for part in values.split(fmt.size)]


def quantized(values: Sequence[float], fmt: BlockFormat) -> list[float]:
    """What torch's fast `quantize` makes of a row."""
    return quantize(torch.tensor(values, dtype=torch.float64), fmt).tolist()


def test_a_block_by_hand() -> None:
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


def test_what_is_within_half_a_step_of_the_largest_is_not_clipped() -> None:
    assert row_errors([6.9, 1.0], MXFP4).clipped == [False, False]  # 6 is the nearest anyway
    assert row_errors([7.1, 1.0], MXFP4).clipped == [True, False]
    assert not any(row_errors([7.1, 1.0], MXFP4.rounding_scale("nearest")).clipped)


@pytest.mark.parametrize(
    "fmt",
    CHOICES,
    ids=lambda f: f"{f.element.name} {f.size} {f.scale and f.scale.name} {f.rounding}",
)
def test_a_row_is_what_quantize_makes_of_it(fmt: BlockFormat) -> None:
    row = row_errors(ROW, fmt)
    wanted = quantized(ROW, fmt)
    assert row.rounded == wanted and sum(row.zeroed) == wanted.count(0)
    blocks = blocks_of(torch.tensor(ROW, dtype=torch.float64), fmt)
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
def test_only_a_scale_rounded_down_clips_an_fp4_outlier(rounding) -> None:
    fmt, clipped = MXFP4.rounding_scale(rounding), 0
    for times in torch.logspace(
        0, 1, 60
    ).tolist():  # all places between two powers of two, three times
        row = row_errors(with_outlier(weight_row(), 37, times), fmt)
        clipped += sum(row.clipped)
        if rounding == "up":
            assert max(row.filled) <= 1
    assert (clipped > 0) == (rounding == "down")


def test_smaller_blocks_confine_an_outlier_and_fp8_survives_it() -> None:
    lost = [sum(row_errors(ROW, MXFP4.with_size(size)).zeroed) for size in (4, 8, 16, 32, 64)]
    assert lost == sorted(lost) and lost[0] < lost[-1] / 3
    assert not any(row_errors(ROW, MXFP8_E4M3).zeroed + row_errors(ROW, MXFP8_E5M2).zeroed)


def test_a_scale_of_0_gives_zeros_and_nothing_clipped() -> None:
    row = row_errors([1.0] * 16 + [0.0] * 15 + [1e-9], NVFP4)
    assert row.scales[-1] == 0 and not any(row.rounded[16:])
    assert [*filter(row.zeroed.__getitem__, range(32))] == [31] and not any(row.clipped)
    assert row.filled == pytest.approx([1.0, 0.0], rel=1e-6)


@pytest.mark.parametrize("scale", [None, FP8_E4M3], ids=["E8M0", "E4M3"])
@pytest.mark.parametrize("element", GFLOAT, ids=lambda fmt: fmt.name)
def test_rounding_at_random_gives_either_neighbour_and_is_right_on_average(
    element: FloatFormat, scale: FloatFormat | None
) -> None:
    fmt = BlockFormat("one", element, 16, scale)
    exact, draw = row_errors(ROW, fmt), random.Random(0).random
    draws = [row_errors(ROW, fmt, draw) for _ in range(100)]
    assert all(one.scales == exact.scales for one in draws)
    for place, value in enumerate(ROW):
        numbers = [one * exact.scales[place] for one in numbers_of(element)]
        inside = min(max(value, numbers[0]), numbers[-1])
        below = max(one for one in numbers if one <= inside)
        above = min(one for one in numbers if one >= inside)
        found = [one.rounded[place] for one in draws]
        assert {*found} <= {below, above}
        assert sum(found) / 100 == pytest.approx(inside, rel=1e-12, abs=0.2 * (above - below))


def test_the_row_is_always_the_same_and_looks_like_weights() -> None:
    assert weight_row() == weight_row() and len(weight_row()) == 64 and len(weight_row(8)) == 8
    # as torch drew them once; where its generator gives others one day, the stored ones stay
    assert weight_row() == pytest.approx(WEIGHTS[:64].tolist(), abs=1e-6)


def test_an_outlier_is_measured_in_deviations_of_the_others() -> None:
    values = [1.0, 100.0, 3.0, 5.0]
    assert spread(values, 1) == pytest.approx(math.sqrt(8 / 3))
    assert with_outlier(values, 1, 10.0) == pytest.approx([1.0, 10 * math.sqrt(8 / 3), 3.0, 5.0])
    assert values[1] == 100


def test_relative_error_of_nothing_but_zeros() -> None:
    assert relative_error(torch.tensor([3.0, 4.0]), torch.tensor([3.0, 3.0])) == pytest.approx(0.2)
    assert relative_error(torch.zeros(3), torch.zeros(3)) == 0.0
    assert row_errors([0.0] * 3, MXFP4).error() == 0.0


@pytest.mark.parametrize("element", GFLOAT, ids=lambda fmt: fmt.name)
def test_the_grid_of_a_block_is_gfloats_numbers_times_the_scale(element: FloatFormat) -> None:
    drawn = block_line(weight_row(32), BlockFormat("one", element))
    assert drawn.grid == [one * drawn.scale for one in numbers_of(element)]
    assert {*drawn.rounded} <= {*drawn.grid} and drawn.values == weight_row(32)


def test_all_values_of_a_number_line_are_one_block() -> None:
    drawn = block_line(weight_row(40), NVFP4)
    assert drawn.grid[-1] == pytest.approx(max(map(abs, weight_row(40))), rel=1e-6)
    assert drawn.rounded == quantized(weight_row(40), NVFP4.with_size(40))


def test_int8_is_int8() -> None:
    assert (INT8.bits, INT8.max, INT8.smallest_subnormal) == (8, 127.0, 1.0)
    x = WEIGHTS
    scale = float(x.abs().max()) / 127
    wanted = (x / scale).round().clamp(-127, 127) * scale
    got = quantize(x, one_scale(INT8, 4096))
    assert torch.allclose(got, wanted, rtol=1e-6, atol=0)


def test_fp8_with_one_scale_is_torchs_cast() -> None:
    x = WEIGHTS
    scale = float(x.abs().max()) / 448
    wanted = (x / scale).float().to(torch.float8_e4m3fn).double() * scale
    assert torch.allclose(quantize(x, one_scale(FP8_E4M3, 4096)), wanted, rtol=1e-6, atol=0)


def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    sparse = torch.randn(16, 64, generator=generator).relu()
    wide = torch.randn(16, 64, generator=generator) * torch.exp2(
        4 * torch.randn(16, 64, generator=generator)
    )
    return {"activations": sparse, "gradients": wide}


def test_each_format_is_measured_with_each_rounding() -> None:
    found = format_errors(tensors())
    of = [(one.format, one.rounding) for one in found if one.tensor == "gradients"]
    assert of == [
        *(
            (fmt.name, rounding)
            for fmt in BLOCK_FORMATS[:5]
            for rounding in ("down", "nearest", "up")
        ),
        ("NVFP4", None),
        ("fp8 E4M3 per tensor", None),
        ("int8 per tensor", None),
    ]
    assert [one.tensor for one in found] == ["activations"] * 18 + ["gradients"] * 18
    for one in found:
        x = tensors()[one.tensor].double()
        fmt = next((fmt for fmt in BLOCK_FORMATS if fmt.name == one.format), None)
        if fmt is None:
            continue
        fmt = fmt.rounding_scale(one.rounding or "down")
        whole = float((x.abs().max() / (6 * 448)).float()) if fmt.scale else 1.0
        rows = [part for row in x for part in exact_blocks(row, fmt)]
        rounded = torch.tensor(
            [quantize_block(part, fmt, whole) for part in rows], dtype=torch.float64
        ).reshape(x.shape)
        assert one.error == pytest.approx(float((rounded - x).norm() / x.norm()), rel=1e-6)
        assert one.zeroed == pytest.approx(
            float(((rounded == 0) & (x != 0)).sum() / (x != 0).sum())
        )
        assert one.bits == float(fmt.bits) and one.element == fmt.element.name


def test_tensors_with_one_scale_are_measured_whole() -> None:
    found = {one.format: one for one in format_errors(tensors()) if one.tensor == "gradients"}
    x = tensors()["gradients"].double()
    wanted = (x / (x.abs().max() / 127)).round() * (x.abs().max() / 127)
    int8 = found["int8 per tensor"]
    assert int8.error == pytest.approx(float((wanted - x).norm() / x.norm()), rel=1e-4)
    assert int8.zeroed == float((wanted == 0).double().mean()) > 0.5
    assert 8 < int8.bits < 8.01


def test_a_tensor_of_zeros_has_no_error() -> None:
    assert {(one.error, one.zeroed) for one in format_errors({"zeros": torch.zeros(2, 8)})} == {
        (0.0, 0.0)
    }


def test_half_tensors_and_gradients_are_taken_as_they_are() -> None:
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(0)).bfloat16().requires_grad_()
    assert format_errors({"x": x}) == format_errors({"x": x.detach().float()})


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_bad_input_is_refused_with_a_reason(bad: float) -> None:
    with pytest.raises(ValueError, match="weights holds inf or NaN"):
        format_errors({"weights": torch.tensor([1.0, bad])})
    for row in ([1.0, bad], []):
        with pytest.raises(ValueError, match="no inf or NaN"):
            row_errors(row, MXFP4)
    with pytest.raises(TypeError, match="convert it with"):
        format_errors({"ids": torch.arange(4)})
