"""Whole formats surveyed, against torch.nextafter and sums that must come out."""

import math

import numpy as np
import pytest

from amp_course.bits import formats as f
from amp_course.bits.survey import gaps, values_between, values_per_binade

ID = {"ids": lambda fmt: fmt.name}


def test_values_between_are_all_there_are():
    assert values_between(0, 6, f.FP4_E2M1) == [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    got = values_between(0.98, 1.03, f.FP16)
    expected = [np.float16(0.98)]
    while expected[-1] < np.float16(1.03):
        expected.append(np.nextafter(expected[-1], np.float16(2)))
    assert got == [float(value) for value in expected]


@pytest.mark.parametrize("ends", [(-1, 1), (2, 1), (0, math.inf), (math.nan, 1)])
def test_ends_that_make_no_range_are_told(ends):
    with pytest.raises(ValueError, match="give 0 ≤ low ≤ high"):
        values_between(*ends, f.FP16)


def test_too_many_values_are_refused_before_they_are_made():
    with pytest.raises(ValueError, match="choose a narrower range"):
        values_between(0, 1, f.FP64)
    with pytest.raises(ValueError, match="counts them one by one"):
        values_per_binade(f.FP32)


@pytest.mark.parametrize(
    "fmt", [f.BF16, f.FP16, f.FP8_E5M2, f.FP8_E4M3, f.FP6_E2M3, f.FP4_E2M1], **ID
)
def test_every_binade_of_normal_numbers_has_the_same_count(fmt):
    counts = values_per_binade(fmt)
    assert sum(counts.values()) == fmt.max_pattern
    full = [counts[e] for e in range(fmt.min_exponent, fmt.max_exponent)]
    assert set(full) == {2**fmt.significand_bits}
    subnormal = [count for e, count in counts.items() if e < fmt.min_exponent]
    assert subnormal == [2**n for n in range(fmt.significand_bits)]


def test_gaps_are_nan_past_the_largest():
    assert gaps(f.FP16, [-30, 0, 11, 15]) == [2.0**-24, 2.0**-10, 2.0, 32.0]
    assert math.isnan(gaps(f.FP16, [16])[0])
