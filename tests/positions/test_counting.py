"""The closed forms against rounding every position, by `round_to` and by torch's own casts."""

import numpy as np
import pytest
import torch

from amp_course.bits import (
    BF16,
    FORMATS,
    FP4_E2M1,
    FP6_E2M3,
    FP8_E4M3,
    FP8_E5M2,
    FP16,
    FP32,
    FP64,
    FloatFormat,
    encode,
)
from amp_course.positions import (
    distinct_positions,
    first_collision,
    first_past_range,
    most_sharing,
    position_values,
)
from amp_course.positions.counting import first_of

FAR = 70_000
ODD = (  # ranges that end before the digits do, no significand bits, a bias of one's own
    FloatFormat.of(2, 10),
    FloatFormat.of(3, 1, "fn"),
    FloatFormat.of(2, 1, "fn"),
    FloatFormat.of(5, 0, "fn"),
    FloatFormat.of(4, 0, "finite"),
    FloatFormat.of(2, 4, "finite"),
    FloatFormat("own bias", 5, 3, 4),
)


def by_rounding(values):
    """Return the distinct count and the largest group for every length,
    from the value of every position.
    """
    is_new = torch.ones(len(values), dtype=torch.bool)
    is_new[1:] = values[1:] != values[:-1]
    place = torch.arange(len(values))
    start = torch.where(is_new, place, 0).cummax(0).values
    return is_new.cumsum(0), (place - start + 1).cummax(0).values


@pytest.mark.slow
@pytest.mark.parametrize("fmt", [BF16, FP16, FP8_E4M3, FP8_E5M2], ids=lambda fmt: fmt.name)
def test_distinct_equals_torchs_cast_for_every_length(fmt):
    positions = torch.arange(FAR, dtype=torch.float32)
    if fmt is FP8_E4M3:  # older versions of torch make NaN of what is past the largest number
        positions.clamp_(max=fmt.max)
    counts, _ = by_rounding(positions.to(fmt.dtype).double())
    assert [distinct_positions(n, fmt) for n in range(1, FAR + 1)] == counts.tolist()
    assert distinct_positions(0, fmt) == 0


@pytest.mark.parametrize("fmt", [*FORMATS, *ODD], ids=lambda fmt: fmt.name)
def test_counts_equal_rounding_every_position(fmt):
    counts, groups = by_rounding(position_values(FAR, fmt))
    lengths = [*range(1, 600), *range(600, FAR, 487), *range(65_515, 65_525)]
    assert [distinct_positions(n, fmt) for n in lengths] == [counts[n - 1].item() for n in lengths]
    assert [most_sharing(n, fmt) for n in lengths] == [groups[n - 1].item() for n in lengths]
    shared = (counts < torch.arange(1, FAR + 1)).nonzero()
    if len(shared):
        assert first_collision(fmt) == shared[0].item()
    else:
        assert first_collision(fmt) >= FAR


def test_first_collisions_and_ends():
    expected = {FP64: 2**53 + 1, FP32: 2**24 + 1, FP16: 2049, BF16: 257, FP8_E4M3: 17}
    assert {fmt: first_collision(fmt) for fmt in expected} == expected
    ends = {FP16: 65_520, FP8_E5M2: 61_440, FP8_E4M3: None, FP4_E2M1: None}
    assert {fmt: first_past_range(fmt) for fmt in ends} == ends
    assert torch.tensor([65_519.0, 65_520.0]).half().isinf().tolist() == [False, True]


def test_a_saturating_format_counts_its_largest_number_once():
    assert FP6_E2M3.max == 7.5
    assert [distinct_positions(n, FP6_E2M3) for n in (7, 8, 9, 10, 10**6)] == [7, 8, 9, 9, 9]
    assert [distinct_positions(n, FP4_E2M1) for n in (5, 6, 7, 8, 10**6)] == [5, 5, 6, 6, 6]
    ids = torch.arange(449.0).to(FP8_E4M3.dtype).float().unique()
    assert distinct_positions(10**6, FP8_E4M3) == len(ids) == 55
    assert most_sharing(10**6, FP4_E2M1) == 10**6 - 6


def test_no_tensor_is_needed_at_two_to_the_forty():
    assert distinct_positions(2**40, BF16) == 257 + 32 * 128
    assert distinct_positions(2**40, FP16) == 7_169
    assert distinct_positions(2**100, BF16) == distinct_positions(2**101, BF16) - 128
    assert most_sharing(2**40, BF16) == 2**32 + 1
    assert most_sharing(131_072, FP16) == 131_072 - 65_520


def test_first_of_is_where_a_value_begins():
    values = position_values(2000, BF16)
    for value in (256, 260, 512, 516, 1024):
        found = first_of(encode(value, BF16), BF16)
        assert found == (values == value).nonzero()[0].item()
    assert first_of(0, BF16) == 0


@pytest.mark.parametrize("count", [distinct_positions, most_sharing, position_values])
def test_bad_lengths_are_told(count):
    with pytest.raises(ValueError, match="positions is -1, and cannot be negative"):
        count(-1, BF16)
    for bad in (2.0, True, "8", None, torch.ones(2)):
        with pytest.raises(TypeError, match="has to be an int"):
            count(bad, BF16)


def test_integers_of_other_kinds_will_do():
    for n in (np.int64(512), torch.tensor(512)):
        assert distinct_positions(n, BF16) == 385
    assert distinct_positions(0, BF16) == most_sharing(0, BF16) == 0
    assert len(position_values(0, BF16)) == 0
