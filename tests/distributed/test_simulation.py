"""Simulated ranks equal two gloo processes bit for bit, and stay together only where they agree."""

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy, linear
from torch.nn.parallel import DistributedDataParallel

from amp_course.distributed.agreement import AgreedGradScaler
from amp_course.distributed.ranks import values_on_ranks
from amp_course.distributed.scripts.tensor_parallel_amp import SumOverRanks, add_up
from amp_course.distributed.simulation import AGREEMENTS, INIT_SCALE, _batches, _Layers, simulate

pytestmark = pytest.mark.usefixtures("one_thread")


class Net(torch.nn.Module):
    """The simulated layers, with real collectives."""

    def __init__(self, layers, cut):
        super().__init__()
        self.layers, self.cut = layers, cut

    def forward(self, x, outlier):
        normed = self.layers.norm(x)
        if self.cut:
            normed.register_hook(add_up)
        spike = torch.zeros(len(x), len(self.layers.into))
        spike[0, 0] = outlier
        units = linear(normed, self.layers.into) + spike.half()
        logits = linear(torch.tanh(self.layers.gain * units), self.layers.out).float()
        return SumOverRanks.apply(logits) if self.cut else logits


def train(agreement, overflow_at, steps, growth_interval):
    """Train on this rank of two gloo processes; return its scales and its layer norm."""
    rank, cut = dist.get_rank(), agreement != "gradients all-reduced"
    layers = _Layers(slice(8 * rank, 8 * rank + 8) if cut else slice(None))
    net = Net(layers, cut)
    model = net if cut else DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kind = AgreedGradScaler if agreement == "found_inf agreed" else torch.amp.GradScaler
    scaler = kind("cpu", init_scale=INIT_SCALE, growth_interval=growth_interval)
    scales = []
    for step, (x, y) in enumerate(_batches(steps)):
        if not cut:
            x, y = x[8 * rank : 8 * rank + 8], y[8 * rank : 8 * rank + 8]
        scales.append(scaler.get_scale())
        with torch.autocast("cpu", dtype=torch.float16):
            logits = model(x, 1e5 if rank in overflow_at.get(step, ()) else 0.0)
        scaler.scale(cross_entropy(logits, y)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    norm = torch.nn.utils.parameters_to_vector(layers.norm.parameters())
    return tuple(scales), tuple(norm.tolist())


@pytest.mark.parametrize("agreement", AGREEMENTS)
@pytest.mark.parametrize(
    "overflow_at",
    [{}, {3: [1], 4: [1], 9: [0]}, {2: [0, 1], 5: [0]}],
    ids=["none", "both ranks", "together first"],
)
def test_two_simulated_ranks_equal_two_real_ones_bit_for_bit(agreement, overflow_at):
    run = simulate(2, agreement, overflow_at, steps=14, growth_interval=3)
    real = values_on_ranks(train, agreement, overflow_at, 14, 3)
    assert real == list(zip(run.scales, run.norms, strict=True))
    split = agreement == "nothing" and bool(overflow_at)
    assert (run.norms[0] != run.norms[1]) is split


@pytest.mark.parametrize("ranks", [2, 8])
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


schedules = st.dictionaries(st.integers(0, 7), st.sets(st.integers(0, 3), min_size=1), max_size=5)
intervals = st.sampled_from([2, 4, None])
STEPS = 8


@settings(max_examples=12, deadline=None, derandomize=True)
@given(schedules, intervals, st.sampled_from(AGREEMENTS))
def test_ranks_stay_together_exactly_where_they_agree(overflow_at, growth_interval, agreement):
    run = simulate(4, agreement, overflow_at, STEPS, growth_interval)
    # The oracle is the schedule: where they agree, somebody's overflow is everybody's skip.
    for rank in range(4):
        own = tuple(rank in overflow_at.get(step, ()) for step in range(STEPS))
        together = tuple(step in overflow_at for step in range(STEPS))
        assert run.overflowed[rank] == own
        assert run.skipped[rank] == (own if agreement == "nothing" else together)
        assert run.scales[rank] == scales_of(run.skipped[rank], growth_interval)
    split = run.first_split()
    if split is None:
        assert run.groups() == [[0, 1, 2, 3]]
        assert len(set(run.norms)) == 1 and not any(map(any, run.distances))
        return
    assert agreement == "nothing"
    assert split == min(step for step, ranks in overflow_at.items() if len(ranks) < 4)
    for rank, distances in enumerate(run.distances):
        assert not any(distances[:split])
        assert bool(distances[split]) is (run.skipped[rank][split] != run.skipped[0][split])
    if split < STEPS - 1:
        assert len({scales[split + 1] for scales in run.scales}) == 2


@pytest.mark.parametrize("victim", [0, 2])
def test_an_inf_on_one_rank_only_leaves_the_others_together(victim):
    run = simulate(4, "nothing", {1: [victim], 5: [victim]}, steps=7, growth_interval=2)
    others = [rank for rank in range(4) if rank != victim]
    assert len({run.norms[rank] for rank in others}) == 1 != len(set(run.norms))
    assert [sum(skipped) for skipped in run.skipped] == [2 * (rank == victim) for rank in range(4)]
    if victim:
        assert run.groups() == [others, [victim]] and run.first_split() == 1
    assert (run.ranks, run.steps) == (4, 7)


def test_scales_that_grow_overflow_on_some_ranks_first():
    run = simulate(8, "nothing", {}, steps=14, growth_interval=1)
    assert any(map(any, run.overflowed)) and run.first_split() is not None
    assert run.skipped == run.overflowed


def test_a_simulation_can_be_repeated_and_leaves_the_process_alone():
    before = torch.get_rng_state()
    first, second = (simulate(2, "nothing", {1: [0]}, steps=4) for _ in range(2))
    assert first == second
    assert torch.equal(before, torch.get_rng_state())
    assert not torch.is_autocast_enabled("cpu")
