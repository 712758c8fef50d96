"""`round_to` against its scalar reference, torch's casts and ml_dtypes."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from amp_course.bits import formats as f
from amp_course.bits.formats import FORMATS, FloatFormat
from amp_course.bits.rounding import round_to
from amp_course.bits.scalar import decode, encode
from tests.bits.oracles import ML_DTYPES, TORCH, midpoints, same, torch_cast, torch_saturates_e4m3

ID = {"ids": lambda fmt: fmt.name}
SPECIAL = np.array(
    [0.0, -0.0, math.inf, -math.inf, 1e-45, -1e-45, 1e-40, 3.4e38, -3.4e38], dtype=np.float32
)


def random_patterns(count=200_000):
    """float32 numbers of every magnitude, NaN and inf among them."""
    patterns = torch.randint(-(2**31), 2**31, (count,), dtype=torch.int64).to(torch.int32)
    return patterns.view(torch.float32)


@pytest.mark.parametrize("fmt", [f.FP16, f.BF16], **ID)
def test_every_midpoint_and_its_fp32_neighbours_round_as_torch_casts(fmt):
    numbers = midpoints(fmt)
    assert same(round_to(torch.from_numpy(numbers), fmt), torch_cast(numbers, fmt))


@pytest.mark.parametrize("fmt", [f.FP8_E4M3, f.FP8_E5M2, f.FP6_E3M2, f.FP6_E2M3, f.FP4_E2M1], **ID)
def test_every_midpoint_and_its_fp32_neighbours_round_as_ml_dtypes_casts(fmt):
    numbers = np.concatenate([midpoints(fmt), SPECIAL])
    if fmt is f.FP8_E4M3:
        numbers = numbers[np.abs(numbers) <= 464]  # past it ml_dtypes gives NaN
    wanted = numbers.astype(ML_DTYPES[fmt]).astype(np.float64)
    assert same(round_to(torch.from_numpy(numbers), fmt), wanted)


@pytest.mark.parametrize("fmt", [f.FP16, f.BF16, f.FP8_E5M2], **ID)
def test_numbers_of_every_magnitude_round_as_torch_casts(fmt):
    numbers = torch.cat([random_patterns(), torch.from_numpy(SPECIAL), torch.tensor([math.nan])])
    assert same(round_to(numbers, fmt), torch_cast(numbers, fmt))


def test_numbers_of_every_magnitude_round_to_e4m3_as_torch_casts():
    numbers = torch.cat(
        [random_patterns(), torch.tensor([464.0, 464.0001, 500.0, math.inf, -math.inf, math.nan])]
    )
    wanted = round_to(numbers, f.FP8_E4M3)
    if not torch_saturates_e4m3():
        wanted = wanted.where(numbers.abs() <= 464, torch.nan)
    assert same(wanted, torch_cast(numbers, f.FP8_E4M3))


@pytest.mark.parametrize("fmt", FORMATS, **ID)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_is_the_twin_of_encode_and_decode(fmt, dtype):
    numbers = torch.randn(2000, dtype=dtype) * 2.0 ** torch.randint(-40, 40, (2000,))
    numbers = torch.cat([numbers, torch.from_numpy(SPECIAL).to(dtype)])
    wanted = [decode(encode(number, fmt), fmt) for number in numbers.tolist()]
    assert same(round_to(numbers, fmt), wanted)


@settings(deadline=None)
@given(
    st.integers(2, 11),
    st.integers(1, 52),
    st.sampled_from(["ieee", "fn", "finite"]),
    st.lists(st.floats(allow_nan=False), min_size=1),
)
def test_is_the_twin_for_any_widths(exponent_bits, significand_bits, specials, numbers):
    if specials != "ieee":
        exponent_bits = min(exponent_bits, 10)  # with 11 the top exponent field would be past fp64
    fmt = FloatFormat.of(exponent_bits, significand_bits, specials)
    wanted = [decode(encode(number, fmt), fmt) for number in numbers]
    assert same(round_to(torch.tensor(numbers, dtype=torch.float64), fmt), wanted)


def test_float64_is_not_rounded_twice():
    """By way of float32 this number would become a tie, and the tie 2048."""
    number = torch.tensor([2049.0 + 2**-40], dtype=torch.float64)
    assert round_to(number, f.FP16).item() == 2050.0
    assert number.float().to(torch.float16).item() == 2048.0


def test_result_dtype_and_shape():
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float8_e5m2):
        x = torch.ones(2, 3).to(dtype)
        assert round_to(x, f.BF16).dtype == torch.float32 and round_to(x, f.BF16).shape == (2, 3)
        assert round_to(x, f.FP64).dtype == torch.float64
    assert round_to(torch.ones(2, dtype=torch.float64), f.FP16).dtype == torch.float64
    assert round_to(torch.empty(0, 4), f.FP16).shape == (0, 4)
    assert round_to(torch.tensor(2049.0), f.FP16).item() == 2048.0
    strided = torch.arange(4100.0).reshape(2, -1).t()
    assert torch.equal(round_to(strided, f.FP16), strided.to(torch.float16).float())


def test_its_input_stays_as_it_was():
    x = torch.tensor([1e-9, 70000.0, 0.1])
    before = x.clone()
    round_to(x, f.FP16)
    assert torch.equal(x, before)


def test_gradients_pass_straight_through():
    x = torch.tensor([0.1, 70000.0, 1e-9, -3.0], requires_grad=True)
    (round_to(x, f.FP16)[[0, 2, 3]] * torch.tensor([2.0, 3.0, 4.0])).sum().backward()
    assert x.grad.tolist() == [2.0, 0.0, 3.0, 4.0]
    half = torch.ones(3, dtype=torch.float16, requires_grad=True)
    round_to(half, f.FP8_E4M3).sum().backward()
    assert half.grad.dtype == torch.float16 and half.grad.tolist() == [1, 1, 1]


def test_what_cannot_be_rounded_is_told():
    with pytest.raises(TypeError, match=r"this one is torch.int64: convert it with \.float\(\)"):
        round_to(torch.arange(3), f.FP16)
    with pytest.raises(TypeError, match="complex64"):
        round_to(torch.ones(1, dtype=torch.complex64), f.FP16)
    with pytest.raises(TypeError, match=r"not a float: wrap it in torch\.tensor"):
        round_to(1.0, f.FP16)
    with pytest.raises(ValueError, match="fp4 E2M1 has no NaN"):
        round_to(torch.tensor([1.0, math.nan]), f.FP4_E2M1)
    assert round_to(torch.full((3,), math.nan), f.FP16).isnan().all()


def test_a_fp16_tensor_that_torch_holds_comes_back_unchanged():
    for dtype, fmt in ((d, fmt) for fmt, d in TORCH.items()):
        values = (
            torch.arange(2**fmt.bits).to(torch.int16 if fmt.bits > 8 else torch.int8).view(dtype)
        )
        assert same(round_to(values.float(), fmt), values.float())
