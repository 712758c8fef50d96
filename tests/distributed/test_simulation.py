"""Simulated ranks do what real ones do: two gloo processes, bit for bit;
and they keep together exactly where they agree.
"""

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy, linear
from torch.nn.parallel import DistributedDataParallel

from amp_course.distributed.agreement import AgreedGradScaler
from amp_course.distributed.ranks import warm_ranks
from amp_course.distributed.simulation import AGREEMENTS, INIT_SCALE, _batches, _Layers, simulate

pytestmark = pytest.mark.usefixtures("one_thread")


class CopyToRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient


class SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Net(torch.nn.Module):
    """The simulated layers, and the collectives for real."""

    def __init__(self, layers, cut):
        super().__init__()
        self.layers, self.cut = layers, cut

    def forward(self, x, outlier):
        normed = self.layers.norm(x)
        if self.cut:
            normed = CopyToRanks.apply(normed)
        spike = torch.zeros(len(x), len(self.layers.into))
        spike[0, 0] = outlier
        units = linear(normed, self.layers.into) + spike.half()
        logits = linear(torch.tanh(self.layers.gain * units), self.layers.out).float()
        return SumOverRanks.apply(logits) if self.cut else logits


def train(agreement, overflow_at, steps, growth_interval):
    """Train on this rank, one of the two of a gloo group, without any simulation;
    return its scales and its layer norm.
    """
    rank, cut = dist.get_rank(), agreement != "gradients all-reduced"
    layers = _Layers(0, slice(8 * rank, 8 * rank + 8) if cut else slice(None))
    net = Net(layers, cut)
    model = net if cut else DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kind = AgreedGradScaler if agreement == "found_inf agreed" else torch.amp.GradScaler
    scaler = kind("cpu", init_scale=INIT_SCALE, growth_interval=growth_interval)
    scales = []
    for step, (x, y) in enumerate(_batches(steps, 0)):
        if not cut:
            x, y = x[8 * rank : 8 * rank + 8], y[8 * rank : 8 * rank + 8]
        scales.append(scaler.get_scale())
        with torch.autocast("cpu", dtype=torch.float16):
            logits = model(x, 1e5 if rank in overflow_at.get(step, ()) else 0.0)
        scaler.scale(cross_entropy(logits, y)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return scales, torch.cat([layers.norm.weight.detach(), layers.norm.bias.detach()]).tolist()


@pytest.mark.parametrize("agreement", AGREEMENTS)
@pytest.mark.parametrize(
    "overflow_at",
    [{}, {3: [1], 4: [1], 9: [0]}, {2: [0, 1], 5: [0]}],
    ids=["none", "both ranks", "together first"],
)
def test_two_simulated_ranks_equal_two_real_ones_bit_for_bit(agreement, overflow_at):
    reports = warm_ranks(2).run(train, agreement, overflow_at, 14, 3)
    run = simulate(2, agreement, overflow_at, steps=14, growth_interval=3)
    assert [report.failure for report in reports] == [None, None]
    for rank, report in enumerate(reports):
        scales, norm = report.value
        assert run.scales[rank] == tuple(scales)
        assert run.norms[rank] == tuple(norm)
    torn = agreement == "nothing" and bool(overflow_at)
    assert (run.norms[0] != run.norms[1]) is torn


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("agreement", ["found_inf agreed", "gradients all-reduced"])
def test_ranks_that_agree_train_as_one_process_with_one_scaler(ranks, agreement):
    overflow_at = {4: [1], 5: [0, 1], 13: [ranks - 1]}
    run = simulate(ranks, agreement, overflow_at, growth_interval=8)
    alone = simulate(1, "nothing", dict.fromkeys(overflow_at, (0,)), growth_interval=8)
    assert set(run.scales) == set(alone.scales) and set(run.skipped) == set(alone.skipped)
    # A part's logits and gradients are rounded to fp16 before they are added up: 2^-11 of each, at
    # every step.
    torch.testing.assert_close(
        torch.tensor(run.norms), torch.tensor(alone.norms).expand(ranks, -1), rtol=0, atol=2e-4
    )
    assert torch.tensor(alone.norms[0][:16]).sub(1).abs().max() > 0.05  # it did learn


def scales_of(skipped, growth_interval):
    """The rule of GradScaler, by hand."""
    scale, streak, scales = INIT_SCALE, 0, []
    for skip in skipped:
        scales.append(scale)
        streak = 0 if skip else streak + 1
        if skip:
            scale /= 2
        elif streak == growth_interval:
            scale, streak = 2 * scale, 0
    return tuple(scales)


schedules = st.dictionaries(st.integers(0, 11), st.sets(st.integers(0, 3), min_size=1), max_size=6)
intervals = st.sampled_from([2, 4, None])
drawn = settings(max_examples=25, deadline=None, derandomize=True)


@drawn
@given(schedules, intervals, st.sampled_from(["found_inf agreed", "gradients all-reduced"]))
def test_ranks_that_agree_skip_together_and_stay_equal(overflow_at, growth_interval, agreement):
    run = simulate(4, agreement, overflow_at, steps=12, growth_interval=growth_interval)
    assert run.groups() == [[0, 1, 2, 3]] and run.first_split() is None
    assert len(set(run.norms)) == 1 and not any(map(any, run.distances))
    # The oracle is the schedule: somebody's overflow is everybody's skip.
    assert run.skipped == (tuple(step in overflow_at for step in range(12)),) * 4
    assert run.scales[0] == scales_of(run.skipped[0], growth_interval)
    for rank in range(4):
        assert run.overflowed[rank] == tuple(
            rank in overflow_at.get(step, ()) for step in range(12)
        )


@drawn
@given(schedules, intervals)
def test_ranks_that_agree_on_nothing_skip_alone(overflow_at, growth_interval):
    run = simulate(4, "nothing", overflow_at, steps=12, growth_interval=growth_interval)
    for rank in range(4):
        assert run.skipped[rank] == run.overflowed[rank]
        assert run.scales[rank] == scales_of(run.skipped[rank], growth_interval)
        assert run.overflowed[rank] == tuple(
            rank in overflow_at.get(step, ()) for step in range(12)
        )
    split = run.first_split()
    if split is None:
        assert run.groups() == [[0, 1, 2, 3]]
        return
    assert split == min(step for step, ranks in overflow_at.items() if len(ranks) < 4)
    for rank in range(4):
        assert not any(run.distances[rank][:split])
    if split < 11:
        assert len({scales[split + 1] for scales in run.scales}) == 2
    skipping = [rank for rank in range(4) if run.skipped[rank][split]]
    assert {
        bool(run.distances[rank][split])
        for rank in range(4)
        if (rank in skipping) != (0 in skipping)
    } == {True}


@drawn
@given(st.integers(0, 3), st.sets(st.integers(0, 11), min_size=1), intervals)
def test_an_inf_on_one_rank_only_leaves_the_others_together(victim, steps, growth_interval):
    run = simulate(
        4, "nothing", dict.fromkeys(steps, (victim,)), steps=12, growth_interval=growth_interval
    )
    others = [rank for rank in range(4) if rank != victim]
    assert run.norms[victim] != run.norms[others[0]]
    assert len({run.norms[rank] for rank in others}) == 1 and not any(
        sum(run.skipped[rank]) for rank in others
    )
    if victim:
        assert run.groups() == [others, [victim]]


def test_without_an_overflow_nothing_has_to_agree():
    nothing, agreed = (simulate(4, agreement, {}) for agreement in ("nothing", "found_inf agreed"))
    assert (
        nothing.norms == agreed.norms
        and nothing.scales == agreed.scales
        and nothing.groups() == [[0, 1, 2, 3]]
    )


def test_scales_that_grow_overflow_on_some_ranks_first():
    run = simulate(8, "nothing", {}, steps=20, growth_interval=1)
    assert any(map(any, run.overflowed)) and run.first_split() is not None
    assert run.skipped == run.overflowed


def test_a_unit_of_100_000_is_inf_in_fp16_and_finite_in_bf16():
    layers = _Layers(0, slice(None))
    for dtype, finite in ((torch.float16, False), (torch.bfloat16, True)):
        layers.zero_grad()
        with torch.autocast("cpu", dtype=dtype):
            logits = layers.logits(torch.ones(2, 16), 100_000.0)
        logits.sum().backward()
        assert logits.isfinite().all()
        assert layers.gain.grad.isfinite().all().item() is finite
        assert layers.into.grad.isfinite().all() and layers.out.grad.isfinite().all()


def test_groups_and_the_first_split():
    run = simulate(4, "nothing", {3: [1], 6: [3]}, steps=8)
    assert run.groups() == [[0, 2], [1], [3]] and run.first_split() == 3
    assert (run.ranks, run.steps) == (4, 8)


def test_a_simulation_can_be_repeated_and_leaves_the_process_alone():
    before = torch.get_rng_state()
    first, second = (simulate(2, "nothing", {1: [0]}, steps=4) for _ in range(2))
    assert first == second != simulate(2, "nothing", {1: [0]}, steps=4, seed=1)
    assert torch.equal(before, torch.get_rng_state())
    (x, _), (other, _) = next(_batches(1, 0)), next(_batches(1, 1))
    assert x.shape == other.shape == (16, 16) and not torch.equal(x, other)
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((3, "nothing", {}), "ranks is 3: 16 hidden units can be shared by 1, 2, 4, 8 or 16 ranks"),
        ((0, "nothing", {}), "ranks is 0"),
        (
            (2, "luck", {}),
            "agreement is 'luck': choose one of 'nothing', 'gradients all-reduced', 'found_inf "
            "agreed'",
        ),
        ((2, "nothing", {}, 0), "steps is 0: take at least 1"),
        ((2, "nothing", {}, 5, 0), "growth_interval is 0: pass at least 1, or None"),
        ((2, "nothing", {5: [0]}, 5), "overflow_at names step 5, but the steps are 0 to 4"),
        (
            (2, "nothing", {4: [2]}, 5),
            "overflow_at names rank 2 at step 4, but the ranks are 0 to 1",
        ),
    ],
)
def test_what_cannot_be_simulated_is_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        simulate(*arguments)
