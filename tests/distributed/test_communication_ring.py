"""The α–β model against a ring simulated hop by hop; fits recover a model from its times."""

from fractions import Fraction

import pytest

from amp_course.distributed.communication import (
    RingModel,
    TwoLevelModel,
    fit,
    halve_bytes,
)
from amp_course.distributed.communication.ring import step_seconds

LINK = RingModel(3e-6, 2e9)


def simulated(ranks, size, link):
    """Send pieces round a ring until each rank has had them all, twice: seconds, as a fraction."""
    latency, bandwidth = Fraction(link.latency_seconds), Fraction(link.bytes_per_second)
    seconds = Fraction(0)
    for _ in ("add them up", "hand out the sums"):
        pieces = [{rank} for rank in range(ranks)]  # the pieces of each rank
        while any(len(own) < ranks for own in pieces):
            seconds += latency + Fraction(size, ranks) / bandwidth
            pieces = [pieces[rank] | pieces[rank - 1] for rank in range(ranks)]
    return seconds


@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 64])
def test_seconds_are_those_of_a_ring_simulated_hop_by_hop(ranks):
    expected = float(simulated(ranks, 10**8, LINK))
    assert LINK.all_reduce_seconds(10**8, ranks) == pytest.approx(expected)


def test_two_levels_by_hand():
    two = TwoLevelModel(RingModel(0.0, 100.0), RingModel(0.0, 10.0), 2)
    # 200 bytes: inside, 1 hop of 100 bytes at 100 bytes/s, twice; between 3 nodes, 4 hops of 100/3
    # bytes at 10 bytes/s
    assert two.all_reduce_seconds(200, 6) == pytest.approx(1 + 4 * 100 / 3 / 10 + 1)
    assert two.all_reduce_seconds(200, 2) == two.inside.all_reduce_seconds(200, 2)


def test_ranks_have_to_fill_their_nodes():
    with pytest.raises(ValueError, match="12 ranks do not fill nodes of 8"):
        TwoLevelModel(LINK, LINK, 8).all_reduce_seconds(1, 12)


@pytest.mark.parametrize("ranks", [2, 8])
@pytest.mark.parametrize("made", [RingModel(2e-5, 3e8), RingModel(0.0, 5e9), RingModel(1.5, 1e3)])
def test_a_fit_finds_what_times_were_made_of(ranks, made):
    sizes = [4 * 10**k for k in range(1, 9)]
    seconds = [made.all_reduce_seconds(size, ranks) for size in sizes]
    found = fit(sizes, seconds, ranks)
    assert found.latency_seconds == pytest.approx(made.latency_seconds, rel=1e-6, abs=1e-12)
    assert found.bytes_per_second == pytest.approx(made.bytes_per_second, rel=1e-6)
    # Each time 10 % too long or too short: both numbers stay within 10 %, although sizes differ by
    # seven powers of ten.
    off = [second * (1.1 if k % 2 else 0.9) for k, second in enumerate(seconds)]
    found = fit(sizes, off, ranks)
    assert found.latency_seconds == pytest.approx(made.latency_seconds, rel=0.1, abs=1e-6)
    assert found.bytes_per_second == pytest.approx(made.bytes_per_second, rel=0.12)


def test_a_latency_is_never_negative():
    found = fit([100, 200, 400], [0.1, 0.25, 0.6], 2)
    assert found.latency_seconds == 0
    # The best bandwidth alone: bytes/β as near as can be to each time, in relative terms.
    rates = [100 / 0.1, 200 / 0.25, 400 / 0.6]
    assert found.bytes_per_second == pytest.approx(sum(rate**2 for rate in rates) / sum(rates))


def test_times_that_do_not_grow_are_refused():
    with pytest.raises(ValueError, match="do not grow with the bytes"):
        fit([1, 2], [2, 1], 2)


@pytest.mark.parametrize(
    ("communication", "overlap", "seconds"),
    [(2.0, 0, 5), (2.0, 1, 3), (4.0, 1, 4), (4.0, 2 / 3, 5)],
)
def test_overlap_hides_as_much_as_fits(communication, overlap, seconds):
    assert step_seconds(3.0, communication, overlap) == seconds


def test_halving_the_bytes_in_exact_numbers():
    rows = halve_bytes(RingModel(0.0, 1e9), 10**9, 4.0, ranks=[2, 4], overlaps=[0, 1])
    assert [(row.ranks, row.overlap) for row in rows] == [(2, 0), (4, 0), (2, 1), (4, 1)]
    assert [(row.step_fp32, row.step_16_bit) for row in rows] == [(8, 6), (10, 7), (4, 4), (6, 4)]
    assert [row.speedup for row in rows] == [8 / 6, 10 / 7, 1, 1.5]
