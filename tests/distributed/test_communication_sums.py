"""16-bit means over ranks: bit for bit those of a slow loop over numpy's scalars,
and wrong in the ways that they should be.
"""

import ml_dtypes
import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._comm_hooks.default_hooks import DefaultState
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

from amp_course.distributed.communication import digit_gradients, measure_ranks, measure_scales
from amp_course.distributed.communication.accuracy import measure_reduction
from amp_course.distributed.communication.sums import predivide_factor, reduce_mean
from amp_course.distributed.ranks import values_on_ranks
from amp_course.kit.data import digits

SCALARS = {torch.float16: np.float16, torch.bfloat16: ml_dtypes.bfloat16, torch.float32: np.float32}


def slow_mean(shards, dtype, order, divide, accumulate):
    """One element after the other, one numpy scalar after the other."""
    n, elements = shards.shape
    narrow, wide = SCALARS[dtype], SCALARS[accumulate or dtype]
    pre = int(DefaultState._get_gradient_predivide_factor(n))
    before, after = {"before": (n, 1), "after": (1, n), "both": (pre, n / pre)}[divide]
    piece = -(-elements // n)
    means = []
    for element in range(elements):
        cast = [narrow(shards[rank, element].item()) for rank in range(n)]
        terms = [wide(term / narrow(before)) if before > 1 else wide(term) for term in cast]
        if order == "ring":
            # the sum of a piece ends at its owner, so it began at the next rank
            owner = element // piece
            total = terms[(owner + 1) % n]
            for hop in range(2, n + 1):
                total = total + terms[(owner + hop) % n]
        else:
            while len(terms) > 1:
                pairs = [terms[i] + terms[i + 1] for i in range(0, len(terms) - 1, 2)]
                terms = pairs + terms[len(pairs) * 2 :]
            total = terms[0]
        means.append(narrow(total / wide(after) if after > 1 else total))
    return torch.tensor([float(mean) for mean in means], dtype=torch.float64)


@pytest.fixture(scope="module")
def gradients():
    return digit_gradients(steps=30)


@pytest.mark.filterwarnings(
    "ignore:overflow encountered:RuntimeWarning", "ignore:invalid value:RuntimeWarning"
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("order", ["ring", "tree"])
@pytest.mark.parametrize("divide", ["before", "after", "both"])
@pytest.mark.parametrize("accumulate", [None, torch.float32])
def test_the_mean_is_that_of_a_loop_over_scalars(dtype, order, divide, accumulate):
    for ranks in (1, 2, 5, 12, 16):
        generator = torch.Generator().manual_seed(ranks)
        shards = torch.randn(ranks, 37, generator=generator) * torch.exp2(torch.arange(-26, 48, 2))
        got = reduce_mean(shards, dtype, order, divide, accumulate)
        assert got.dtype == dtype
        expected = slow_mean(shards, dtype, order, divide, accumulate)
        assert torch.equal(got.double().nan_to_num(7e77), expected.nan_to_num(7e77))
        assert torch.equal(got.signbit(), expected.signbit()) or got.isnan().any()


def test_the_three_divisions_fail_where_they_should():
    large, small = torch.full((4, 1), 30_000.0), torch.full((64, 1), 2.0**-22)
    fp16 = torch.float16
    assert reduce_mean(large, fp16, divide="after").item() == float("inf")
    for divide in ("before", "both"):
        assert reduce_mean(large, fp16, divide=divide).item() == 30_000
    assert reduce_mean(small, fp16, divide="before").item() == 0
    assert reduce_mean(small, fp16, divide="after").item() == 2.0**-22


def test_a_ring_stagnates_and_a_tree_does_not():
    ones = torch.ones(1024, 8)
    assert reduce_mean(ones, torch.bfloat16, "ring", "after").tolist() == [0.25] * 8  # stuck at 256
    assert reduce_mean(ones, torch.bfloat16, "tree", "after").tolist() == [1.0] * 8
    assert reduce_mean(ones, torch.bfloat16, "ring", "after", torch.float32).tolist() == [1.0] * 8


def test_the_predivide_factor_is_fsdps_own():
    for ranks in range(1, 1100):
        assert predivide_factor(ranks) == DefaultState._get_gradient_predivide_factor(ranks)


def test_torchs_own_hook_and_gloo_make_the_same_mean_on_two_ranks():
    drawn = torch.randn(2, 50, generator=torch.Generator().manual_seed(3))
    shards = drawn * torch.exp2(torch.linspace(-24, 15, 50))
    # the sum of the first overflows, half of the second is lost
    shards[:, :2] = torch.tensor([6e4, 2.0**-24])
    expected = reduce_mean(shards, torch.float16, "ring", "before").tolist()
    assert values_on_ranks(_reduce_by_hook, shards.tolist()) == [expected] * 2


def _reduce_by_hook(shards):
    class Bucket:
        def buffer(self):
            return torch.tensor(shards[dist.get_rank()])

    return fp16_compress_hook(dist.group.WORLD, Bucket()).wait().tolist()


def test_a_measurement_counts_what_is_lost_and_what_overflows():
    shards = torch.tensor([[0.0, 2.0**-30, 60_000.0, 1.0], [0.0, 2.0**-30, 60_000.0, 2.0]])
    row = measure_reduction(shards, torch.float16, divide="after")
    assert (row.ranks, row.share_lost, row.share_overflowed) == (2, 1 / 3, 1 / 4)
    assert row.relative_error == pytest.approx(2.0**-30 / 1.5)
    row = measure_reduction(shards, torch.float16, divide="before", scale=0.5)
    assert (row.share_lost, row.share_overflowed, row.scale) == (1 / 3, 0, 0.5)

    row = measure_reduction(torch.full((2, 1), 6e4), torch.float16, divide="after")
    assert row.share_overflowed == 1 and np.isnan(row.relative_error)


def test_sixteen_bits_do_worse_with_more_ranks(gradients):
    bf16 = measure_ranks(gradients, torch.bfloat16)
    fp16 = measure_ranks(gradients, torch.float16)
    in_fp32 = measure_ranks(gradients, torch.bfloat16, accumulate=torch.float32)
    assert [row.ranks for row in bf16] == [2**k for k in range(1, 11)]
    assert [row.ranks for row in measure_ranks(gradients[:9], torch.float16)] == [2, 4, 8]
    assert bf16[-1].relative_error > 10 * bf16[0].relative_error
    assert bf16[-1].relative_error > 4 * fp16[-1].relative_error
    assert in_fp32[-1].relative_error < 0.2 * bf16[-1].relative_error


def test_each_division_moves_the_window_of_loss_scales(gradients):
    def edges(divide):
        rows = measure_scales(gradients[:128], torch.float16, divide)
        half_lost = max(row.scale for row in rows if row.share_lost > 0.5)
        return half_lost, min(row.scale for row in rows if row.share_overflowed > 0.02)

    after, both, before = map(edges, ("after", "both", "before"))
    for edge in (0, 1):
        assert after[edge] <= both[edge] <= before[edge] and after[edge] < before[edge]


def test_digit_gradients_are_those_of_backward():
    data, fresh = digits(), digit_gradients(ranks=3, steps=0)
    assert torch.equal(digit_gradients(ranks=3, steps=2), digit_gradients(ranks=3, steps=2))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    for rank in range(3):
        model.zero_grad()
        one = slice(rank, rank + 1)
        nn.functional.cross_entropy(model(data.train_x[one]), data.train_y[one]).backward()
        expected = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
        torch.testing.assert_close(fresh[rank], expected)
