"""Shares and windows of loss scales against `zone_fractions`,
which multiplies and rounds every number.
"""

import math

import pytest
import torch

from amp_course.bits.formats import BF16, FP8_E4M3, FP8_E5M2, FP16
from amp_course.scaler.window import (
    EXPONENTS,
    FORMATS,
    Gradients,
    Window,
    count_sizes,
    find_window,
)
from amp_course.underflow.zones import ZONES, zone_fractions, zone_histogram


def counted(*tensors):
    return Gradients(*map(count_sizes, tensors))


def drawn(count=4000, centre=-20, spread=8):
    generator = torch.Generator().manual_seed(1)
    sizes = torch.exp2(
        torch.randn(count, dtype=torch.float64, generator=generator) * spread + centre
    ).float()
    return sizes * (torch.randint(0, 2, (count,), generator=generator) * 2 - 1)


def hard(fmt):
    """Numbers at the limits of the zones: the limits themselves,
    and the float32 numbers next to them.
    """
    half = fmt.smallest_subnormal / 2
    limits = [half, fmt.smallest_subnormal, fmt.smallest_normal - half, fmt.smallest_normal]
    limits += [fmt.max, fmt.max + 2.0 ** (fmt.max_exponent - fmt.significand_bits) / 2]
    x = torch.tensor(
        [limit for limit in limits if 1e-37 < limit < 3.41e38], dtype=torch.float64
    ).float()
    x = torch.cat([x, x.nextafter(torch.tensor(0.0)), x.nextafter(torch.tensor(math.inf))])
    return x[x.isfinite()]


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("make", [lambda fmt: drawn(), hard], ids=["drawn", "limits"])
def test_shares_are_those_of_rounding_every_number(fmt, make):
    x = make(fmt)
    gradients = counted(x)
    for exponent in EXPONENTS:
        want = zone_fractions(x.double(), fmt, 2.0**exponent)
        assert gradients.fractions(fmt, exponent) == {zone: getattr(want, zone) for zone in ZONES}


@pytest.mark.parametrize(
    ("fmt", "exponent"), [*zip(FORMATS, (-10, 0, 13, 13), strict=True)], ids=str
)
def test_histogram_is_that_of_rounding_every_number(fmt, exponent):
    x = torch.cat([drawn(), hard(fmt), torch.tensor([math.inf, 0.0, math.nan])])
    assert counted(x).histogram(fmt, exponent) == zone_histogram(x.double(), fmt, 2.0**exponent)


def test_histogram_of_nothing_but_infinities():
    x = torch.tensor([math.inf, -math.inf])
    assert counted(x).histogram(FP16, 3) == zone_histogram(x, FP16, 8.0)


def test_the_window_by_trying_every_scale_with_torchs_cast():
    x = drawn(20_000, centre=-18, spread=3)
    fits = []
    for exponent in EXPONENTS:
        cast = (x.double() * 2.0**exponent).half()
        if (cast == 0).double().mean() <= 0.001 and not cast.isinf().any():
            fits.append(exponent)
    assert find_window(counted(x).sweep(FP16)) == Window(min(fits), max(fits))
    assert len(fits) == fits[-1] - fits[0] + 1  # no gap in it


def test_no_window_where_the_spread_is_wider_than_the_format():
    x = drawn(spread=12)
    assert find_window(counted(x).sweep(FP8_E4M3)) is None
    assert find_window(counted(x).sweep(BF16)) is not None
    assert find_window(counted(torch.tensor([math.inf, 1.0])).sweep(FP16)) is None


def test_takes_many_tensors_of_any_float_dtype_and_leaves_out_zeros_and_nan():
    gradients = counted(
        torch.zeros(3), torch.tensor([[1.0, math.nan]]), torch.tensor(-2.0, dtype=torch.bfloat16)
    )
    assert len(gradients) == 2
    assert gradients.histogram(FP16, 0) == zone_histogram(torch.tensor([1.0, 2.0]), FP16)
    sweep = gradients.sweep(FP8_E5M2)
    assert sweep[0]["normal"] == 1 and sweep[15] == gradients.fractions(FP8_E5M2, 15)


def test_what_is_no_gradient_is_refused():
    for nothing in (torch.zeros(3), torch.tensor([math.nan]), torch.empty(0)):
        with pytest.raises(ValueError, match="all gradients here are 0 or NaN: was backward"):
            counted(nothing)
    for kind in (torch.int64, torch.complex64):
        with pytest.raises(TypeError, match=f"real floating-point numbers, and these {kind}"):
            count_sizes(torch.ones(2, dtype=kind))
