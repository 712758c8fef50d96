"""Shares and windows of loss scales against `zone_fractions`,
which multiplies and rounds every number.
"""

import math

import pytest
import torch

from amp_course.bits.formats import BF16, FORMATS, FP8_E4M3, FP8_E5M2, FP16
from amp_course.scaler.window import EXPONENTS, Gradients, Window
from amp_course.underflow.zones import ZONES, zone_fractions, zone_histogram

SIXTEEN = [fmt for fmt in FORMATS if fmt.significand_bits < 20]


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
    limits = [
        half,
        fmt.smallest_subnormal,
        fmt.smallest_normal - half,
        fmt.smallest_normal,
        fmt.max,
    ]
    limits += [fmt.max + 2.0 ** (fmt.max_exponent - fmt.significand_bits) / 2]
    x = torch.tensor(
        [limit for limit in limits if 1e-37 < limit < 3.41e38], dtype=torch.float64
    ).float()
    x = torch.cat([x, x.nextafter(torch.tensor(0.0)), x.nextafter(torch.tensor(math.inf))])
    return x[x.isfinite()]


@pytest.mark.parametrize("fmt", SIXTEEN, ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("make", [lambda fmt: drawn(), hard], ids=["drawn", "limits"])
def test_shares_are_those_of_rounding_every_number(fmt, make):
    x = make(fmt)
    gradients = Gradients(x)
    for exponent in (-10, -3, 0, 1, 7, 16, 40):
        want = zone_fractions(x.double(), fmt, 2.0**exponent)
        assert gradients.fractions(fmt, exponent) == {zone: getattr(want, zone) for zone in ZONES}


@pytest.mark.parametrize("fmt", SIXTEEN, ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("exponent", [-10, 0, 13])
def test_histogram_is_that_of_rounding_every_number(fmt, exponent):
    x = torch.cat([drawn(), hard(fmt), torch.tensor([math.inf, 0.0, math.nan])])
    assert Gradients(x).histogram(fmt, exponent) == zone_histogram(x.double(), fmt, 2.0**exponent)


def test_histogram_of_nothing_but_infinities():
    x = torch.tensor([math.inf, -math.inf])
    assert Gradients(x).histogram(FP16, 3) == zone_histogram(x, FP16, 8.0)


def test_the_window_by_trying_every_scale_with_torchs_cast():
    x = drawn(20_000, centre=-18, spread=3)
    fits = []
    for exponent in EXPONENTS:
        cast = (x.double() * 2.0**exponent).half()
        if (cast == 0).double().mean() <= 0.001 and not cast.isinf().any():
            fits.append(exponent)
    assert Gradients(x).window(FP16) == Window(min(fits), max(fits))
    assert len(fits) == fits[-1] - fits[0] + 1  # no gap in it
    assert str(Window(4, 20)) == "2^4 to 2^20"


def test_no_window_where_the_spread_is_wider_than_the_format():
    x = drawn(spread=12)
    assert Gradients(x).window(FP8_E4M3) is None
    assert Gradients(x).window(BF16) is not None
    assert Gradients(torch.tensor([math.inf, 1.0])).window(FP16) is None


def test_a_spare_of_none_and_a_window_narrowed_by_it():
    x = drawn(20_000, centre=-18, spread=3)
    strict, loose = Gradients(x).window(FP16, spare=0.0), Gradients(x).window(FP16, spare=0.05)
    assert strict is None or strict.lowest > loose.lowest
    with pytest.raises(ValueError, match=r"spare is 1\.5: it is the share"):
        Gradients(x).window(FP16, spare=1.5)


def test_takes_many_tensors_of_any_float_dtype_and_leaves_out_zeros_and_nan():
    gradients = Gradients(
        torch.zeros(3), torch.tensor([[1.0, math.nan]]), torch.tensor(2.0, dtype=torch.bfloat16)
    )
    assert gradients.sizes.tolist() == [1.0, 2.0] and len(gradients) == 2
    sweep = gradients.sweep(FP8_E5M2, [0, 15])
    assert sweep[0]["normal"] == 1 and sweep[15] == gradients.fractions(FP8_E5M2, 15)


@pytest.mark.parametrize(
    ("bad", "error", "words"),
    [
        ([], ValueError, "all gradients here are 0 or NaN"),
        ([torch.zeros(3)], ValueError, "was backward\\(\\) called before"),
        ([torch.tensor([math.nan])], ValueError, "all gradients here are 0 or NaN"),
        ([torch.tensor([1, 2])], TypeError, "this is torch.int64: pass parameter.grad"),
        ([None], TypeError, "this is NoneType"),
        ([torch.tensor([1j])], TypeError, "complex64"),
    ],
)
def test_what_is_no_gradient_is_refused(bad, error, words):
    with pytest.raises(error, match=words):
        Gradients(*bad)
