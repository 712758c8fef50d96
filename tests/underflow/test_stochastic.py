"""Stochastic rounding: only the two neighbours, and the right mean."""

import math

import pytest
import torch

from amp_course.bits import formats as f
from amp_course.bits.scalar import decode, encode, neighbours
from amp_course.underflow import stochastic_round

DRAWS = 40_000


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(
    "fmt", [f.FP16, f.BF16, f.FP8_E4M3, f.FP8_E5M2, f.FP6_E2M3, f.FP4_E2M1], ids=lambda x: x.name
)
def test_only_the_two_neighbours_and_the_mean_within_the_clt_bound(fmt):
    draw = generator(11)
    tiny = fmt.smallest_subnormal
    shares = torch.rand(16, generator=draw, dtype=torch.float64).tolist()
    sizes = [8 * tiny * one for one in shares[:6]]  # below and about the smallest numbers
    sizes += [fmt.smallest_normal * (1 + one) for one in shares[6:10]]
    sizes += [min(fmt.max, 100.0) * one for one in shares[10:]]
    for value in (*sizes, *(-one for one in sizes)):
        got = stochastic_round(torch.full((DRAWS,), value, dtype=torch.float64), fmt, draw)
        nearest = encode(value, fmt)
        at = decode(nearest, fmt)
        other = neighbours(nearest, fmt)[0 if at > value else 1]
        assert set(got.unique().tolist()) <= {at, other}
        step = abs(other - at)
        chance = abs(value - at) / step
        bound = 5 * step * math.sqrt(chance * (1 - chance) / DRAWS)
        assert abs(got.mean().item() - value) <= bound + 1e-15 * abs(value)


@pytest.mark.parametrize("fmt", [f.FP16, f.BF16], ids=lambda x: x.name)
def test_numbers_of_the_format_stay(fmt):
    patterns = torch.arange(-(2**15), 2**15).to(torch.int16)
    values = patterns.view(fmt.dtype).float()
    got = stochastic_round(values, fmt, generator())
    assert torch.equal(got.nan_to_num(nan=7e4), values.nan_to_num(nan=7e4))
    assert torch.equal(got.isnan(), values.isnan())
    assert torch.equal(got.signbit(), values.signbit())


def test_a_chance_of_one_in_a_billion_is_kept(monkeypatch):
    """A 2^-30th of a step: too fine for float32 draws,
    and below zero its rest would be rounded to a whole step.
    """
    x = torch.tensor([1.0, -1.0]) * 2.0**-24 * 2.0**-30
    options_of_rand = {}

    def drawn(shape, **options):
        options_of_rand.update(options)
        return torch.full(shape, options_of_rand["value"], dtype=torch.float64)

    monkeypatch.setattr(torch, "rand", drawn)
    for value, expected in ((2.0**-31, 2.0**-24), (2.0**-29, 0.0)):
        options_of_rand["value"] = value
        got = stochastic_round(x, f.FP16)
        assert got.tolist() == [expected, -expected] and got.signbit().tolist() == [False, True]
    assert options_of_rand["dtype"] == torch.float64


def test_a_generator_repeats_itself_and_elements_are_drawn_apart():
    x = torch.full((1000,), 2049.0)
    first = stochastic_round(x, f.FP16, generator(5))
    assert torch.equal(first, stochastic_round(x, f.FP16, generator(5)))
    assert not torch.equal(first, stochastic_round(x, f.FP16, generator(6)))
    assert 400 < (first == 2050).sum() < 600


def test_shape_dtype_and_the_tensor_itself():
    x = torch.full((2, 3), 0.1, dtype=torch.bfloat16, requires_grad=True)
    got = stochastic_round(x, f.FP8_E4M3)
    assert got.shape == (2, 3) and got.dtype == torch.float32 and not got.requires_grad
    assert stochastic_round(torch.tensor(0.1, dtype=torch.float64), f.FP16).dtype == torch.float64
    assert stochastic_round(torch.empty(0), f.FP16).shape == (0,)
    y = torch.tensor([0.1])
    stochastic_round(y, f.FP16)
    assert y.item() == pytest.approx(0.1)


def test_overflow_and_what_is_no_number():
    x = torch.tensor([1e6, -1e6, math.inf, -math.inf, math.nan])
    got = stochastic_round(x, f.FP16, generator())
    assert got[:4].tolist() == [math.inf, -math.inf, math.inf, -math.inf] and got[4].isnan()
    assert stochastic_round(torch.tensor([1e6]), f.FP4_E2M1).item() == 6.0
    with pytest.raises(ValueError, match="has no NaN"):
        stochastic_round(x, f.FP4_E2M1)
    with pytest.raises(TypeError, match="only floating-point tensors are rounded"):
        stochastic_round(torch.tensor([1, 2]), f.FP16)
