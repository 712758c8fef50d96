"""The closed forms against rounding every position, by `round_to` and by torch's own casts."""

import math
import time

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
)
from amp_course.positions import (
    distinct_positions,
    first_collision,
    first_past_range,
    most_sharing,
    position_values,
)
from amp_course.positions.counting import first_of, last_exact

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
TABLE = {  # FACTS: length → (ids in bf16, most tokens sharing one, ids in fp16, most sharing)
    512: (385, 3, 512, 1),
    2_048: (641, 9, 2_048, 1),
    4_096: (769, 17, 3_073, 3),
    8_192: (897, 33, 4_097, 5),
    32_768: (1_153, 129, 6_145, 17),
    131_072: (1_409, 513, 7_169, 131_072 - 65_520),
}


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
    lengths = [*range(1, 600), *range(600, FAR, 61), *range(65_500, 65_560)]
    assert [distinct_positions(n, fmt) for n in lengths] == [counts[n - 1].item() for n in lengths]
    assert [most_sharing(n, fmt) for n in lengths] == [groups[n - 1].item() for n in lengths]
    shared = (counts < torch.arange(1, FAR + 1)).nonzero()
    if len(shared):
        assert first_collision(fmt) == shared[0].item()
    else:
        assert first_collision(fmt) >= FAR


@pytest.mark.parametrize("n", TABLE)
def test_the_table_of_facts(n):
    assert (
        distinct_positions(n, BF16),
        most_sharing(n, BF16),
        distinct_positions(n, FP16),
        most_sharing(n, FP16),
    ) == TABLE[n]


def test_first_collisions_and_ends():
    expected = {
        "bf16": 257,
        "fp16": 2049,
        "tf32": 2049,
        "fp8 E4M3": 17,
        "fp8 E5M2": 9,
        "fp6 E3M2": 9,
        "fp4 E2M1": 5,
    }
    expected |= {"fp32": 2**24 + 1, "fp64": 2**53 + 1, "fp6 E2M3": 9}
    assert {fmt.name: first_collision(fmt) for fmt in FORMATS} == expected
    assert [first_past_range(fmt) for fmt in (FP16, FP8_E5M2, FP8_E4M3, FP4_E2M1)] == [
        65_520,
        61_440,
        None,
        None,
    ]
    assert torch.tensor([65_519.0, 65_520.0]).half().isinf().tolist() == [False, True]


def test_a_saturating_format_counts_its_largest_number_once():
    assert FP6_E2M3.max == 7.5
    assert [distinct_positions(n, FP6_E2M3) for n in (7, 8, 9, 10, 10**6)] == [7, 8, 9, 9, 9]
    assert [distinct_positions(n, FP4_E2M1) for n in (5, 6, 7, 8, 10**6)] == [5, 5, 6, 6, 6]
    assert (
        distinct_positions(10**6, FP8_E4M3)
        == len(torch.arange(449.0).to(FP8_E4M3.dtype).float().unique())
        == 55
    )
    assert most_sharing(10**6, FP4_E2M1) == 10**6 - 6


def test_no_tensor_and_no_time_at_two_to_the_forty():
    fastest = min(_seconds() for _ in range(5))
    assert distinct_positions(2**40, BF16) == 257 + 32 * 128
    assert distinct_positions(2**40, FP16) == 7_169
    assert fastest < 1e-3
    assert distinct_positions(2**100, BF16) == distinct_positions(2**101, BF16) - 128
    assert most_sharing(2**40, BF16) == 2**32 + 1


def _seconds():
    start = time.perf_counter()
    distinct_positions(2**40, BF16)
    return time.perf_counter() - start


def test_first_of_is_where_a_value_begins():
    values = position_values(2000, BF16)
    for value, first in ((512.0, 511), (514.0, None), (516.0, 515), (1024.0, 1022)):
        found = (values == value).nonzero()
        if first is None:
            assert len(found) == 0
        else:
            assert found[0].item() == first
    from amp_course.bits import encode

    assert first_of(encode(512, BF16), BF16) == 511 and first_of(0, BF16) == 0


@pytest.mark.parametrize("count", [distinct_positions, most_sharing, position_values])
def test_bad_lengths_are_told(count):
    with pytest.raises(ValueError, match="positions is -1, and cannot be negative"):
        count(-1, BF16)
    for bad in (
        2.0,
        0.5,
        True,
        np.bool_(True),
        torch.tensor(True),
        "8",
        None,
        math.nan,
        math.inf,
        torch.ones(2),
    ):
        with pytest.raises(TypeError, match="has to be an int"):
            count(bad, BF16)


def test_integers_of_other_kinds_will_do():
    assert (
        distinct_positions(np.int64(512), BF16)
        == distinct_positions(torch.tensor(512), BF16)
        == 385
    )
    assert (
        distinct_positions(0, BF16) == most_sharing(0, BF16) == len(position_values(0, BF16)) == 0
    )


def test_what_cannot_be_rounded_one_by_one_is_told():
    with pytest.raises(ValueError, match="too many to round"):
        position_values(2**53 + 1, BF16)
    assert position_values(2**40, BF16, start=2**40 - 2).tolist() == [2.0**40, 2.0**40]


def test_a_format_without_a_one_cannot_count():
    tiny = FloatFormat("tiny", 3, 2, 20)
    huge = FloatFormat("huge", 5, 2, -20)
    for fmt in (tiny, huge):
        with pytest.raises(ValueError, match="cannot represent 1"):
            last_exact(fmt)
    assert last_exact(FP32) == 2**24 and last_exact(FP64) == 2**53
