"""`zone_fractions` against torch's and ml_dtypes' own casts,
on every boundary and on random numbers.
"""

import math

import ml_dtypes
import numpy as np
import pytest
import torch

from amp_course.bits import formats as f
from amp_course.underflow.zones import ZONES, edges, zone_fractions, zone_histogram, zones_of
from tests.bits.oracles import midpoints

ID = {"ids": lambda fmt: fmt.name}


def by_cast(x, dtype, smallest_normal):
    """Zones of float32 numbers by torch's cast and torch.finfo; −1 for zero and NaN."""
    y = x.to(dtype).double().abs()
    zones = torch.full(x.shape, 2)
    zones[y < smallest_normal] = 1
    zones[y == 0] = 0
    zones[y.isinf()] = 3
    zones[(x == 0) | x.isnan()] = -1
    return zones


@pytest.mark.parametrize("fmt", [f.FP16, f.BF16, f.FP8_E5M2], **ID)
def test_zones_are_those_of_torchs_cast_on_every_midpoint_and_its_neighbours(fmt):
    numbers = torch.from_numpy(midpoints(fmt))
    expected = by_cast(numbers, fmt.dtype, torch.finfo(fmt.dtype).smallest_normal)
    assert torch.equal(zones_of(numbers, fmt).long(), expected)
    assert expected.unique().tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("scale", [2.0**10, 3.0])
@pytest.mark.parametrize("fmt", [f.FP16, f.BF16], **ID)
def test_zones_are_those_of_torchs_cast_on_random_numbers_of_every_size(fmt, scale):
    generator = torch.Generator().manual_seed(3)
    patterns = torch.randint(-(2**31), 2**31, (200_000,), generator=generator).to(torch.int32)
    numbers = patterns.view(torch.float32)
    expected = by_cast(numbers * scale, fmt.dtype, torch.finfo(fmt.dtype).smallest_normal)
    expected[numbers == 0] = -1
    expected[(numbers != 0) & (numbers * scale == 0)] = 0
    assert torch.equal(zones_of(numbers, fmt, scale).long(), expected)
    found = zone_fractions(numbers, fmt, scale)
    shares = torch.bincount(expected[expected >= 0], minlength=4) / (expected >= 0).sum()
    assert [found.lost, found.subnormal, found.normal, found.overflow] == pytest.approx(
        shares.tolist(), abs=1e-7
    )
    assert found.counted + found.zeros + found.nans == len(numbers)
    assert found.nans == numbers.isnan().sum()


def test_fp8_e4m3_overflows_where_ml_dtypes_leaves_the_range():
    numbers = midpoints(f.FP8_E4M3)
    with np.errstate(invalid="ignore", over="ignore"):
        past = np.isnan(numbers.astype(ml_dtypes.float8_e4m3fn).astype(np.float64)) & ~np.isnan(
            numbers
        )
    assert past.any()
    assert torch.equal(zones_of(torch.from_numpy(numbers), f.FP8_E4M3) == 3, torch.from_numpy(past))


@pytest.mark.parametrize(
    ("fmt", "tie"),
    [(f.FP4_E2M1, 7.0), (f.FP6_E2M3, 7.75), (f.FP6_E3M2, 30.0)],
    ids=lambda value: str(value)[:12],
)
def test_formats_without_inf_overflow_from_half_a_step_past_the_largest(fmt, tie):
    found = zones_of(torch.tensor([fmt.max, tie - 1e-3, tie, -tie, math.inf]), fmt).tolist()
    assert found == [2, 2, 3, 3, 3]


def test_float64_is_not_rounded_on_the_way():
    tie = 2.0**-25
    assert zones_of(
        torch.tensor([tie, math.nextafter(tie, 1)], dtype=torch.float64), f.FP16
    ).tolist() == [0, 1]
    limit = 65520.0
    both = torch.tensor([math.nextafter(limit, 0), limit], dtype=torch.float64)
    assert zones_of(both, f.FP16).tolist() == [2, 3]
    assert (
        zone_fractions(torch.tensor([1e-320, 1e300], dtype=torch.float64), f.FP64).subnormal == 0.5
    )


def test_zeros_are_counted_apart_and_inf_is_overflow():
    x = torch.tensor([[0.0, -0.0, 1e-8], [-1e-5, 1.0, -math.inf]])
    found = zone_fractions(x, f.FP16)
    assert (found.lost, found.subnormal, found.normal, found.overflow) == (0.25, 0.25, 0.25, 0.25)
    assert (found.counted, found.zeros, found.nans) == (4, 2, 0)
    quarters = "lost 25.0%, subnormal 25.0%, normal 25.0%, overflow 25.0%"
    assert str(found) == f"{quarters}; zeros 2"
    found = zone_fractions(torch.tensor([math.nan, 1.0]), f.FP16)
    assert found.normal == 1.0 and str(found).endswith("overflow 0.0%; NaN 1")
    none = zone_fractions(torch.zeros(5), f.FP16)
    assert (none.lost, none.normal, none.counted, none.zeros) == (0.0, 0.0, 0, 5)


def test_scaling_lifts_and_overflows():
    x = torch.tensor([1e-8, 1.0])
    assert zone_fractions(x, f.FP16, loss_scale=2.0**10).lost == 0
    assert zone_fractions(x, f.FP16, loss_scale=2.0**16).overflow == 0.5
    assert zone_fractions(x, f.FP16, loss_scale=0.25).lost == 0.5


def test_a_tensor_is_left_as_it_was():
    x = torch.tensor([1e-8, -1.0, 0.0, math.nan], requires_grad=True)
    before = x.detach().clone()
    zone_histogram(x, f.FP16, 2.0**8)
    assert torch.equal(x.detach()[:3], before[:3]) and x[3].isnan() and x.grad is None


def test_what_is_no_tensor_of_numbers_is_refused():
    with pytest.raises(TypeError, match=r"only floating-point tensors are rounded.*\.float\(\)"):
        zone_fractions(torch.ones(3, dtype=torch.int64), f.FP16)
    with pytest.raises(TypeError, match="expected a tensor"):
        zone_fractions([1.0, 2.0], f.FP16)
    with pytest.raises(ValueError, match="the tensor is empty"):
        zone_fractions(torch.empty(0, 3), f.FP16)
    with pytest.raises(ValueError, match="nothing but NaN"):
        zone_fractions(torch.full((4,), math.nan), f.FP16)

    for scale in (0.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="the loss scale is"):
            zone_fractions(torch.ones(2), f.FP16, scale)


@pytest.mark.parametrize("fmt", f.FORMATS, **ID)
def test_histogram_holds_every_number_in_its_binade(fmt):
    generator = torch.Generator().manual_seed(1)
    x = torch.exp2(torch.randn(5000, dtype=torch.float64, generator=generator) * 30)
    x[:7] = torch.tensor([0.0, math.inf, 1.0, -2.0, 2.0**-30, 4.0 - 2.0**-50, 4.0])
    found, shares = zone_histogram(x, fmt), zone_fractions(x, fmt)
    assert [found.share(zone) for zone in ZONES] == pytest.approx(
        [getattr(shares, zone) for zone in ZONES]
    )
    assert found.total == shares.counted and found.infinite == 1
    heights = dict(
        zip(found.exponents, map(sum, zip(*found.counts.values(), strict=True)), strict=True)
    )
    expected = [
        math.floor(math.log2(abs(v))) if v != 4.0 - 2.0**-50 else 1
        for v in x.tolist()
        if v and v != math.inf
    ]
    assert heights == {e: expected.count(e) for e in heights}


def test_histogram_of_nothing():
    assert zone_histogram(torch.zeros(3), f.FP16).exponents == ()
    assert zone_histogram(torch.tensor([math.inf]), f.FP16).share("overflow") == 1.0


def test_edges_lie_where_the_zones_change():
    for fmt in f.FORMATS:
        low, normal, high = edges(fmt)
        if low < -1074:
            continue  # half of fp64's smallest number: a Python float cannot hold it
        points = torch.tensor(
            [2.0**low, 2.0**low * 1.01, 2.0**normal, 2.0**high], dtype=torch.float64
        )
        names = [ZONES[zone] for zone in zones_of(points, fmt).tolist()]
        assert (
            names[0] == "lost"
            and names[1] in ("subnormal", "normal")
            and names[2:] == ["normal", "normal"]
        )
