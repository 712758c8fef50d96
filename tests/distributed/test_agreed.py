"""AgreedGradScaler against torch's GradScaler: equal on one rank, and two ranks decide as one
process with all gradients.
"""

import copy
import math
import pickle
import random

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.amp import GradScaler

from amp_course.distributed.agreement import AgreedGradScaler
from amp_course.distributed.agreement.drift import KINDS, run_drift
from amp_course.distributed.ranks import collectives_so_far, values_on_ranks, warm_ranks

INF, NAN, NONE = math.inf, math.nan, "none"
SMALL = {"init_scale": 2.0**8, "growth_interval": 3}


# A schedule: for each step, for each rank, what is wrong with its gradients.
def drawn(seed, faults=(INF, -INF, NAN), ranks=2):
    draw = random.Random(seed)
    return [tuple(draw.choice([0.0, 0.0, 0.0, *faults]) for _ in range(ranks)) for _ in range(8)]


def train(
    scaler,
    schedule,
    ranks,
    fused=False,
    unscale=False,
):
    """Step two optimizers on the shards of some ranks; return scales and weights."""
    shards = [nn.Parameter(torch.full((2 + rank,), 0.5)) for rank in ranks]
    second = [nn.Parameter(torch.ones(3)) for _ in ranks]
    # fused SGD of torch 2.13 leaves its buffer uninitialised if the first step is skipped
    momentum = 0.0 if fused else 0.5
    optimizers = [
        torch.optim.SGD(shards, lr=0.5, momentum=momentum, fused=fused),
        torch.optim.SGD(second, lr=0.25, fused=fused),
    ]
    scales = []
    for number, faults in enumerate(schedule, 1):
        scaler.scale(torch.ones(()))
        for weights in (shards, second):
            for rank, weight in zip(ranks, weights, strict=True):
                fault = faults[rank] if weights is shards else 0.0
                value = torch.full_like(weight, number + 1.0) * scaler.get_scale()
                weight.grad = None if fault == NONE else value + (0.0 if fault == 0.0 else fault)
        for optimizer in optimizers:
            if unscale:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return scales, [weight.detach() for weight in (*shards, *second)]


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("unscale", [False, True])
def test_alone_it_is_a_gradscaler_to_the_last_bit(fused, unscale):
    for seed in range(10):
        scalers = [GradScaler("cpu", **SMALL), AgreedGradScaler("cpu", **SMALL)]
        plain, agreed = (
            train(scaler, drawn(seed, ranks=1), (0,), fused, unscale) for scaler in scalers
        )
        assert plain[0] == agreed[0]
        assert all(torch.equal(a, b) for a, b in zip(plain[1], agreed[1], strict=True))
        assert scalers[0].state_dict() == scalers[1].state_dict()


def _schedules(make, schedules, fused):
    """Train with this rank's shards in each schedule, all ranks at once."""
    return [
        train(make("cpu", **SMALL), schedule, (dist.get_rank(),), fused, number % 2 == 1)
        for number, schedule in enumerate(schedules)
    ]


@pytest.mark.parametrize("fused", [False, True])
def test_two_ranks_decide_as_one_process_that_sees_all_gradients(fused):
    faults = (INF, -INF, NAN) if fused else (INF, -INF, NAN, NONE)
    # a step in which no rank has a gradient is GradScaler's error, tested below
    schedules = [
        [(0.0, NONE) if step == (NONE, NONE) else step for step in drawn(seed, faults)]
        for seed in range(12)
    ]
    found = values_on_ranks(_schedules, AgreedGradScaler, schedules, fused)
    for number, schedule in enumerate(schedules):
        alone = GradScaler("cpu", **SMALL)
        scales, weights = train(alone, schedule, (0, 1), fused, number % 2 == 1)
        for rank in (0, 1):
            assert found[rank][number][0] == scales, (number, rank)
            shard, second = found[rank][number][1]
            assert torch.equal(shard, weights[rank]) and torch.equal(second, weights[2 + rank])


def test_plain_gradscalers_part_in_the_same_schedules():
    schedules = [drawn(seed) for seed in range(10)]
    first, second = values_on_ranks(_schedules, GradScaler, schedules, False)
    assert sum(one[0] != other[0] for one, other in zip(first, second, strict=True)) > 7


def _no_gradient_anywhere():
    scaler = AgreedGradScaler("cpu")
    scaler.scale(torch.ones(()))
    scaler.step(torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1))


def test_no_gradient_on_any_rank_is_gradscalers_own_error():
    for report in warm_ranks().run(_no_gradient_anywhere):
        assert "found no gradient to look at" in report.failure.message


def _a_rank_without_a_loss():
    scaler = AgreedGradScaler("cpu", init_scale=4.0)
    weight = nn.Parameter(torch.ones(1))
    if dist.get_rank() == 0:
        scaler.scale((weight * INF).sum()).backward()
    scaler.step(torch.optim.SGD([weight], lr=0.1))
    scaler.update()
    return scaler.get_scale()


def test_a_rank_that_scales_no_loss_follows_the_others():
    assert values_on_ranks(_a_rank_without_a_loss) == [2.0, 2.0]


def take_steps(scaler, steps=1):
    weight = nn.Parameter(torch.ones(1))
    for _ in range(steps):
        scaler.scale(weight.sum()).backward()
        scaler.step(torch.optim.SGD([weight], lr=0.1))
        scaler.update()


def _load_scales(*scales):
    """Take a step after each pair of scales is loaded: rank 0's and rank 1's."""
    scaler = AgreedGradScaler("cpu")
    for pair in scales:
        scaler.load_state_dict(GradScaler("cpu").state_dict() | {"scale": pair[dist.get_rank()]})
        take_steps(scaler)


def test_scales_that_differ_are_reported_on_all_ranks():
    for report in warm_ranks().run(_load_scales, (8.0, 8.0), (2.0**10, 64.0)):
        assert "scales differ: rank 0 has 1024, rank 1 has 64" in report.failure.message
    values_on_ranks(_load_scales, (8.0, 8.0), (64.0, 64.0))


def _copy_with_a_group():
    scaler = AgreedGradScaler("cpu", init_scale=4.0, process_group=dist.new_group([0, 1]))
    return pickle.loads(pickle.dumps(scaler)).get_scale()


def test_a_scaler_with_a_group_can_be_copied():
    assert values_on_ranks(_copy_with_a_group) == [4.0, 4.0]


def _collectives(enabled, alone):
    """Count the collectives of three steps, and how often the scales are compared, which makes the
    host wait.
    """
    group = [dist.new_group([rank]) for rank in (0, 1)][dist.get_rank()] if alone else None
    scaler, compared = AgreedGradScaler("cpu", enabled=enabled, process_group=group), []
    compare = scaler._compare
    scaler._compare = lambda scales: (compared.append(scales), compare(scales))
    before = len(collectives_so_far())
    take_steps(scaler, 3)
    return len(collectives_so_far()) - before, len(compared)


def test_one_collective_for_each_step_and_none_where_nobody_has_to_agree():
    assert values_on_ranks(_collectives, True, False) == [(3, 1)] * 2
    assert values_on_ranks(_collectives, False, False) == [(0, 0)] * 2
    assert values_on_ranks(_collectives, True, True) == [(0, 0)] * 2


def test_state_and_copies_are_gradscalers():
    plain, agreed = GradScaler("cpu", **SMALL), AgreedGradScaler("cpu", **SMALL)
    plain.scale(torch.ones(()))
    agreed.load_state_dict(plain.state_dict())
    assert agreed.state_dict() == plain.state_dict()
    agreed.scale(torch.ones(()))
    assert copy.deepcopy(agreed).get_scale() == agreed.get_scale() == 2.0**8


@pytest.mark.slow
def test_a_real_training_parts_by_hand_and_only_there():
    drifts = {kind: run_drift(kind, 80) for kind in KINDS}
    fault = drifts.pop("by hand")
    assert fault.parted is not None and fault.skipped[0] != fault.skipped[1]
    assert max(fault.distance[: fault.parted - 1]) == 0.0 < fault.distance[-1]
    for one in drifts.values():
        assert one.parted is None and max(one.distance) == 0.0
        assert any(one.skipped[0]) and one.skipped[0] == one.skipped[1]
