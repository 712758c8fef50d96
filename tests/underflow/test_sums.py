"""The sums against exact arithmetic."""

import math

import pytest
import torch

from amp_course.underflow import kahan_running_sum, pairwise_sum, running_sum

HALVES = [torch.float16, torch.bfloat16]


@pytest.mark.parametrize(
    ("dtype", "term", "stops"),
    [(HALVES[0], 1.0, 2048), (HALVES[1], 1.0, 256), (HALVES[1], 0.1, 32)],
)
def test_equal_terms_stop(dtype, term, stops):
    totals = running_sum(torch.full((3000,), term, dtype=dtype))
    assert totals.dtype == dtype and totals[-1] == stops
    assert (totals.diff() >= 0).all()


@pytest.mark.parametrize("dtype", HALVES)
def test_the_cures_come_within_a_few_roundings(dtype):
    terms = torch.rand(5000, generator=torch.Generator().manual_seed(2)).to(dtype)
    exact = math.fsum(terms.tolist())
    eps = torch.finfo(dtype).eps
    assert abs(running_sum(terms)[-1].item() / exact - 1) > 0.1
    assert abs(kahan_running_sum(terms)[-1].item() / exact - 1) < eps
    assert abs(pairwise_sum(terms).item() / exact - 1) < 4 * eps
    wide = running_sum(terms, torch.float32)[-1]
    assert wide.dtype == torch.float32 and abs(wide.item() / exact - 1) < 1e-5


def test_every_running_total_is_one_torch_addition_more():
    terms = torch.randn(300, generator=torch.Generator().manual_seed(0)).half()
    totals, kahan = running_sum(terms), kahan_running_sum(terms)
    assert totals[0] == terms[0] == kahan[0]
    assert all(totals[n] == totals[n - 1] + terms[n] for n in range(1, 300))
    exact = terms.double().cumsum(0)
    assert torch.allclose(kahan.double(), exact, rtol=2**-10, atol=2**-8)


@pytest.mark.parametrize("count", [1, 2, 7, 9])
def test_pairwise_adds_every_term_once(count):
    terms = 2.0 ** torch.arange(count, dtype=torch.float32)
    assert pairwise_sum(terms) == 2**count - 1 == terms.sum()


@pytest.mark.parametrize("way", [running_sum, kahan_running_sum, pairwise_sum])
def test_bad_terms_are_refused(way):
    with pytest.raises(ValueError, match=r"shape \(0,\)"):
        way(torch.empty(0))
    with pytest.raises(ValueError, match=r"shape \(2, 2\).*flatten"):
        way(torch.ones(2, 2))
    with pytest.raises(TypeError, match="int64"):
        way(torch.ones(3, dtype=torch.int64))
