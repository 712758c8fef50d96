"""`quantize` against gfloat's block quantisation, the course's exact reference,
and an NVFP4 of its own in float64.
"""

import math
from fractions import Fraction

import gfloat.block
import gfloat.formats
import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from amp_course.bits import BF16, FP8_E4M3, FP32
from amp_course.frontiers import (
    BLOCK_FORMATS,
    MXFP4,
    MXFP6_E2M3,
    MXFP6_E3M2,
    MXFP8_E4M3,
    MXFP8_E5M2,
    NVFP4,
    BlockFormat,
    blocks_of,
    quantize,
)
from amp_course.frontiers.reference import fp32_scale, quantize_block

GFLOAT = {
    MXFP8_E5M2: gfloat.formats.format_info_mxfp8_e5m2,
    MXFP8_E4M3: gfloat.formats.format_info_mxfp8_e4m3,
    MXFP6_E3M2: gfloat.formats.format_info_mxfp6_e3m2,
    MXFP6_E2M3: gfloat.formats.format_info_mxfp6_e2m3,
    MXFP4: gfloat.formats.format_info_mxfp4_e2m1,
}
ID = {"ids": lambda value: getattr(value, "name", value)}


def edge_blocks():
    torch.manual_seed(0)
    outlier = torch.randn(32)
    outlier[3] = 1e6
    blocks = {
        "zeros": torch.zeros(32),
        "one outlier": outlier,
        "one number": torch.nn.functional.pad(torch.tensor([-2.7]), (5, 26)),
        "the end of fp32": torch.full((32,), 1.7e38),
        "eighths": torch.arange(32.0) / 8,
        "negative quarters": -torch.arange(32.0) / 4,
        "past the largest element": torch.linspace(1.0, 1.999, 32),
        "powers of two": 2.0 ** -torch.arange(32.0),
        "signed zeros": torch.cat([torch.full((16,), -0.0), torch.ones(16)]),
    }
    sized = {
        f"2^{e}": (torch.randn(32).double() * 2.0**e).float() for e in (-149, -140, -127, -126, 124)
    }
    drawn = {
        f"drawn {n}": torch.randn(32) * 2.0 ** int(torch.randint(-40, 40, ())) for n in range(15)
    }
    return blocks | sized | drawn


@pytest.mark.parametrize("fmt", GFLOAT, **ID)
def test_every_mx_format_equals_gfloat_bit_for_bit(fmt):
    for name, block in edge_blocks().items():
        wanted = gfloat.block.quantize_block(
            GFLOAT[fmt], block.double().numpy(), gfloat.block.compute_scale_amax
        )
        got = quantize(block, fmt)
        assert np.array_equal(got.numpy(), wanted.astype(np.float32)), name


@pytest.mark.parametrize("rounding", ["down", "nearest", "up"])
@pytest.mark.parametrize("fmt", GFLOAT, **ID)
def test_every_rounding_of_the_scale_equals_the_exact_reference(fmt, rounding):
    fmt = fmt.rounding_scale(rounding)
    for name, block in edge_blocks().items():
        wanted = torch.tensor(quantize_block(block.tolist(), fmt), dtype=torch.float64).float()
        got = quantize(block, fmt)
        assert torch.equal(got, wanted), (name, got, wanted)
        assert torch.equal(got.signbit(), wanted.signbit()), name


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=40),
    st.sampled_from([*GFLOAT]),
    st.sampled_from(["down", "nearest", "up"]),
)
def test_drawn_blocks_equal_the_exact_reference(values, fmt, rounding):
    fmt = fmt.rounding_scale(rounding)
    wanted = [quantize_block(values[n : n + 32], fmt) for n in range(0, len(values), 32)]
    got = quantize(torch.tensor(values, dtype=torch.float64), fmt)
    assert got.tolist() == [one for block in wanted for one in block]


def nvfp4_in_float64(x):
    """NVFP4 by ml_dtypes' casts: one fp32 scale, an E4M3 scale for each 16 numbers,
    E2M1 elements.
    """
    blocks = x.astype(np.float64).reshape(-1, 16)
    amax = np.abs(blocks).max(axis=1, keepdims=True)
    whole = np.float64(np.float32(amax.max() / (6 * 448))) or 1.0
    scales = (amax / (6 * whole)).astype(ml_dtypes.float8_e4m3fn).astype(np.float64) * whole
    with np.errstate(invalid="ignore", divide="ignore"):
        scaled = np.where(scales > 0, blocks / scales, 0)
    elements = np.clip(scaled, -6, 6).astype(ml_dtypes.float4_e2m1fn).astype(np.float64)
    return (elements * scales).astype(np.float32).reshape(x.shape)


@pytest.mark.parametrize("spread", [0, 4, 12])
def test_nvfp4_equals_a_float64_reference(spread):
    torch.manual_seed(spread)
    x = torch.randn(64, 128) * 2.0 ** torch.randint(-spread, spread + 1, (64, 1))
    x[0] = 0
    assert np.array_equal(quantize(x, NVFP4).numpy(), nvfp4_in_float64(x.numpy()))
    whole = blocks_of(x, NVFP4).tensor_scale
    assert whole == fp32_scale(x.flatten().tolist(), NVFP4)
    exact = [quantize_block(row, NVFP4, whole) for row in x.double().reshape(-1, 16)[:32].tolist()]
    assert torch.equal(quantize(x, NVFP4).reshape(-1, 16)[:32], torch.tensor(exact).float())


def test_blocks_lie_along_any_dimension_and_the_last_may_be_shorter():
    x = torch.randn(70, 3, 5)
    along = quantize(x, MXFP4, dim=0)
    for place in ((0, 0), (2, 4)):
        column = torch.cat([quantize(x[n : n + 32, *place], MXFP4) for n in (0, 32, 64)])
        assert torch.equal(along[:, *place], column)
    assert torch.equal(quantize(x, MXFP4, dim=-3), along)
    parts = blocks_of(x, MXFP4, dim=0)
    assert parts.elements.shape == (3, 5, 3, 32) and parts.scales.shape == (3, 5, 3)


def test_single_and_half_tensors():
    # 6.6 of half a unit is past the largest element, 6
    assert quantize(torch.tensor(3.3), MXFP4) == 3.0
    half = torch.randn(4, 32).half()
    assert torch.equal(quantize(half, MXFP8_E4M3), quantize(half.float(), MXFP8_E4M3))
    assert quantize(half.double(), MXFP4).dtype == torch.float64


@pytest.mark.parametrize("fmt", BLOCK_FORMATS, **ID)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_block_with_nan_or_inf_is_nan_and_the_others_are_not(fmt, bad):
    x = torch.randn(3, fmt.size)
    clean = quantize(x, fmt)
    x[1, 7] = bad
    got = quantize(x, fmt)
    assert got[1].isnan().all() and got[[0, 2]].isfinite().all()
    if not fmt.two_level:
        assert torch.equal(got[[0, 2]], clean[[0, 2]])


def test_bad_input_is_refused_with_a_reason():
    with pytest.raises(TypeError, match="convert it with"):
        quantize(torch.arange(4), MXFP4)
    with pytest.raises(TypeError, match="expected a tensor, not a list"):
        quantize([6.0, 0.4], MXFP4)
    with pytest.raises(IndexError, match="Dimension out of range"):
        quantize(torch.ones(2, 2), MXFP4, dim=2)
    with pytest.raises(ValueError, match="unknown rounding"):
        quantize(torch.ones(2), MXFP4, rounding="up")
    with pytest.raises(ValueError, match="at least 1 number"):
        MXFP4.with_size(0)
    with pytest.raises(ValueError, match="choose “down”, “nearest” or “up”"):
        MXFP4.rounding_scale("even")


def test_gradients_pass_straight_through():
    x = torch.randn(4, 40, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(4, 40)
    (quantize(x, MXFP4, dim=0) * weight).sum().backward()
    assert x.grad is not None and torch.equal(x.grad, weight.bfloat16())


@pytest.mark.parametrize("fmt", [MXFP4, NVFP4, MXFP6_E2M3], **ID)
def test_stochastic_rounding_is_right_on_average_and_takes_neighbours_only(
    fmt,
):
    fmt, generator = fmt.rounding_scale("up"), torch.Generator().manual_seed(0)
    x = torch.randn(64)
    scales = blocks_of(x, fmt).scales.repeat_interleave(fmt.size, -1).float()
    drawn = quantize(x.expand(4000, 64), fmt, rounding="stochastic", generator=generator)
    step = scales * 2  # the widest gap of fp4's: from 4 to 6
    inside = x.abs() <= scales * fmt.element.max
    assert ((drawn - x).abs() <= step)[:, inside].all()
    error = (drawn.double().mean(0) - x).abs() / step
    assert error[inside].max() < 5 * 0.5 / math.sqrt(4000)


@pytest.mark.parametrize("scale", [FP32, BF16], **ID)
def test_a_scale_with_the_range_of_fp32_needs_no_second_one(scale):
    """As in DeepSeek-V3's recipe: E4M3, and an fp32 scale for each 128 numbers."""
    fmt = BlockFormat("E4M3 by 128", FP8_E4M3, 128, scale)
    x = torch.randn(40, 300, generator=torch.Generator().manual_seed(0))
    x = x * 10.0 ** torch.arange(-20, 20)[:, None]
    dtype = torch.float32 if scale is FP32 else torch.bfloat16
    assert not fmt.two_level and fmt.bits == 8 + Fraction(scale.bits, 128)
    got = quantize(x, fmt)
    for start in (0, 128, 256):
        part = slice(start, start + 128)
        block = x[:, part].double()
        scales = (block.abs().amax(1, keepdim=True) / 448).to(dtype).double()
        scaled = (block / scales).clamp(-448, 448).numpy()
        stored = scaled.astype(ml_dtypes.float8_e4m3fn).astype(np.float64)
        assert np.allclose(got[:, part].numpy(), stored * scales.numpy(), rtol=2e-7, atol=0)
    assert quantize(torch.zeros(3), fmt).tolist() == [0.0, 0.0, 0.0]
