"""The α–β model in exact fractions, a ring played hop by hop,
and fits that find what the times were made of.
"""

from fractions import Fraction

import pytest

from amp_course.distributed.communication import (
    INFINIBAND_NDR,
    NVLINK_4,
    RingModel,
    TwoLevelModel,
    fit,
    halve_bytes,
    step_seconds,
)

LINK = RingModel(3e-6, 2e9)


def played(ranks, size, link, passes):
    """Send pieces round a ring until each rank has had them all: seconds, as a fraction."""
    latency, bandwidth = Fraction(link.latency_seconds), Fraction(link.bytes_per_second)
    seconds = Fraction(0)
    for _ in range(passes):
        pieces = [{rank} for rank in range(ranks)]  # which pieces each rank holds
        while any(len(held) < ranks for held in pieces):
            seconds += latency + Fraction(size, ranks) / bandwidth
            pieces = [pieces[rank] | pieces[rank - 1] for rank in range(ranks)]
    return seconds


@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 64])
def test_seconds_are_those_of_a_ring_played_hop_by_hop(ranks):
    size = 10**8
    assert LINK.all_reduce_seconds(size, ranks) == pytest.approx(
        float(played(ranks, size, LINK, passes=2))
    )
    once = pytest.approx(float(played(ranks, size, LINK, passes=1)))
    assert LINK.all_gather_seconds(size, ranks) == LINK.reduce_scatter_seconds(size, ranks) == once


def test_two_levels_of_one_kind_of_node_are_one_ring():
    two = TwoLevelModel(LINK, RingModel(1e-5, 1e9), 8)
    assert two.all_reduce_seconds(10**9, 8) == LINK.all_reduce_seconds(10**9, 8)
    assert two.all_reduce_seconds(10**9, 4) == LINK.all_reduce_seconds(10**9, 4)
    alone = TwoLevelModel(LINK, RingModel(1e-5, 1e9), 1)
    assert alone.all_reduce_seconds(10**9, 16) == RingModel(1e-5, 1e9).all_reduce_seconds(10**9, 16)


def test_two_levels_by_hand():
    two = TwoLevelModel(RingModel(0.0, 100.0), RingModel(0.0, 10.0), 2)
    # 200 bytes: inside, 1 hop of 100 bytes at 100 bytes/s, twice; between 3 nodes, 4 hops of 100/3
    # bytes at 10 bytes/s
    assert two.all_reduce_seconds(200, 6) == pytest.approx(1 + 4 * 100 / 3 / 10 + 1)


def test_ranks_have_to_fill_their_nodes():
    with pytest.raises(ValueError, match="12 ranks do not fill nodes of 8"):
        TwoLevelModel(LINK, LINK, 8).all_reduce_seconds(1, 12)


@pytest.mark.parametrize("ranks", [2, 8])
@pytest.mark.parametrize("made", [RingModel(2e-5, 3e8), RingModel(0.0, 5e9), RingModel(1.5, 1e3)])
def test_a_fit_finds_what_exact_times_were_made_of(ranks, made):
    sizes = [4 * 10**k for k in range(1, 9)]
    found = fit(sizes, [made.all_reduce_seconds(size, ranks) for size in sizes], ranks)
    assert found.latency_seconds == pytest.approx(made.latency_seconds, rel=1e-6, abs=1e-12)
    assert found.bytes_per_second == pytest.approx(made.bytes_per_second, rel=1e-6)


def test_a_fit_weighs_relative_errors():
    """Each time 10 % too long or too short: both numbers stay within 10 %,
    although sizes differ by seven powers of ten.
    """
    made, sizes = RingModel(2e-5, 3e8), [10**k for k in range(1, 9)]
    off = [
        made.all_reduce_seconds(size, 2) * (1.1 if k % 2 else 0.9) for k, size in enumerate(sizes)
    ]
    found = fit(sizes, off, 2)
    assert found.latency_seconds == pytest.approx(made.latency_seconds, rel=0.1)
    assert found.bytes_per_second == pytest.approx(made.bytes_per_second, rel=0.1)


def test_a_latency_is_never_negative():
    found = fit([100, 200, 400], [0.1, 0.25, 0.6], 2)
    assert found.latency_seconds == 0
    # The best bandwidth alone: bytes/β as near as can be to each time, in relative terms.
    rates = [100 / 0.1, 200 / 0.25, 400 / 0.6]
    assert found.bytes_per_second == pytest.approx(sum(rate**2 for rate in rates) / sum(rates))


@pytest.mark.parametrize(
    ("sizes", "seconds", "ranks", "message"),
    [
        ([1, 2], [1, 2], 1, "one rank sends nothing"),
        ([1, 1], [1, 2], 2, "two different sizes"),
        ([1, 2], [1], 2, "one time for each size"),
        ([1, 2], [0, 2], 2, "above 0"),
        ([1, 2], [2, 1], 2, "do not grow with the bytes"),
    ],
)
def test_a_fit_says_what_it_lacks(sizes, seconds, ranks, message):
    with pytest.raises(ValueError, match=message):
        fit(sizes, seconds, ranks)


def test_overlap_hides_as_much_as_fits():
    assert step_seconds(3.0, 2.0) == 5
    assert step_seconds(3.0, 2.0, overlap=1) == 3
    assert step_seconds(3.0, 4.0, overlap=1) == 4
    assert step_seconds(3.0, 4.0, overlap=2 / 3) == 5
    for wrong in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="from 0 to 1"):
            step_seconds(1.0, 1.0, overlap=wrong)


def test_halving_the_bytes_in_exact_numbers():
    rows = halve_bytes(RingModel(0.0, 1e9), 10**9, 4.0, ranks=[2, 4], overlaps=[0, 1])
    assert [(row.ranks, row.overlap) for row in rows] == [(2, 0), (4, 0), (2, 1), (4, 1)]
    assert [(row.communication_fp32, row.communication_16_bit) for row in rows[:2]] == [
        (4, 2),
        (6, 3),
    ]
    assert [(row.step_fp32, row.step_16_bit) for row in rows] == [(8, 6), (10, 7), (4, 4), (6, 4)]
    assert [row.speedup for row in rows] == [8 / 6, 10 / 7, 1, 1.5]


def test_halving_buys_less_where_latency_rules():
    fast, slow = (RingModel(latency, INFINIBAND_NDR) for latency in (0.0, 1e-3))
    speedups = [
        halve_bytes(link, 10**7, 0.01, ranks=[1024], overlaps=[0])[0].speedup
        for link in (fast, slow)
    ]
    assert speedups[0] > 1.05 and 1 < speedups[1] < 1.001
    assert NVLINK_4 == 9 * INFINIBAND_NDR


@pytest.mark.parametrize(
    "wrong", [(-1e-9, 1.0), (0.0, 0.0), (0.0, -1.0), (float("nan"), 1.0), (0.0, float("nan"))]
)
def test_links_without_sense_are_refused(wrong):
    with pytest.raises(ValueError):
        RingModel(*wrong)
    with pytest.raises(ValueError, match="at least 1 rank"):
        LINK.all_reduce_seconds(1, 0)
