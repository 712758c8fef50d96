"""AgreedGradScaler against torch's own: alone it is one,
and on two ranks both decide as one process that sees all gradients.
"""

from __future__ import annotations

import copy
import math
import pickle
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.amp import GradScaler

from amp_course.distributed.agreement import AgreedGradScaler
from amp_course.distributed.agreement.drift import KINDS, run_drift
from amp_course.distributed.communication.setups import FSDP2_ON_CPU
from amp_course.distributed.ranks import Report, warm_ranks

INF, NAN, NONE = math.inf, math.nan, "none"
Schedule = list[tuple[Any, ...]]  # for each step, for each rank: what is wrong with its gradients
Make = Callable[..., GradScaler]
SMALL = {"init_scale": 2.0**8, "growth_interval": 3}


def drawn(seed: int, ranks: int = 2, steps: int = 8) -> Schedule:
    draw = random.Random(seed)
    return [
        tuple(draw.choice([0.0, 0.0, 0.0, INF, -INF, NAN, NONE]) for _ in range(ranks))
        for _ in range(steps)
    ]


def train(
    scaler: GradScaler,
    schedule: Schedule,
    ranks: tuple[int, ...],
    fused: bool = False,
    unscale: bool = False,
) -> tuple[list[float], list[bool], list[Tensor]]:
    """Step two optimizers on the shards of some ranks;
    return scales, whether it stepped, and the weights.
    """
    shards = [nn.Parameter(torch.full((2 + rank,), 0.5)) for rank in ranks]
    second = [nn.Parameter(torch.ones(3)) for _ in ranks]
    momentum = (
        0.0 if fused else 0.5
    )  # fused SGD of torch 2.13 leaves its buffer uninitialised if the first step is skipped
    optimizers = [
        torch.optim.SGD(shards, lr=0.5, momentum=momentum, fused=fused),
        torch.optim.SGD(second, lr=0.25, fused=fused),
    ]
    scales, decided = [], []
    for number, faults in enumerate(schedule, 1):
        scaler.scale(torch.ones(()))
        for weights in (shards, second):
            for rank, weight in zip(ranks, weights, strict=True):
                fault = faults[rank] if weights is shards else 0.0
                value = torch.full_like(weight, number + 1.0) * scaler.get_scale()
                weight.grad = None if fault == NONE else value + (0.0 if fault == 0.0 else fault)
        before = [weight.detach().clone() for weight in shards]
        for optimizer in optimizers:
            if unscale:
                scaler.unscale_(optimizer)
            if (
                any(
                    weight.grad is not None
                    for group in optimizer.param_groups
                    for weight in group["params"]
                )
                or len(ranks) == 1
            ):
                scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        decided.append(
            any(not torch.equal(old, new.detach()) for old, new in zip(before, shards, strict=True))
        )
    return scales, decided, [weight.detach() for weight in (*shards, *second)]


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("unscale", [False, True])
def test_alone_it_is_a_gradscaler_to_the_last_bit(fused: bool, unscale: bool) -> None:
    for seed in range(40):
        schedule = [
            tuple(0.0 if one == NONE else one for one in step) for step in drawn(seed, ranks=1)
        ]
        scalers = [GradScaler("cpu", **SMALL), AgreedGradScaler("cpu", **SMALL)]
        plain, agreed = (train(scaler, schedule, (0,), fused, unscale) for scaler in scalers)
        assert plain[:2] == agreed[:2]
        assert all(torch.equal(a, b) for a, b in zip(plain[2], agreed[2], strict=True))
        assert scalers[0].state_dict() == scalers[1].state_dict()


def on_ranks(work: Any, *arguments: Any) -> list[Report]:
    return warm_ranks().run(work, *arguments, seconds=60.0)


def values(work: Any, *arguments: Any) -> list[Any]:
    reports = on_ranks(work, *arguments)
    for report in reports:
        assert report.failure is None, report.failure
    return [report.value for report in reports]


def _schedules(make: Make, schedules: list[Schedule], fused: bool) -> list[Any]:
    """Train with this rank's shards in each schedule, all ranks at once."""
    found = []
    for number, schedule in enumerate(schedules):
        found.append(
            train(
                make("cpu", **SMALL), schedule, (dist.get_rank(),), fused, unscale=number % 2 == 1
            )
        )
    return found


@pytest.mark.slow
def test_two_ranks_decide_as_one_process_that_sees_all_gradients() -> None:
    schedules = [drawn(seed) for seed in range(200)]
    # a step in which no rank has a gradient is GradScaler's error, tested below
    schedules = [
        [(0.0, NONE) if step == (NONE, NONE) else step for step in one] for one in schedules
    ]
    first, second = values(_schedules, AgreedGradScaler, schedules, False)
    for number, schedule in enumerate(schedules):
        scales, _, weights = train(
            GradScaler("cpu", **SMALL), schedule, (0, 1), unscale=number % 2 == 1
        )
        for rank, found in enumerate((first[number], second[number])):
            assert found[0] == scales, (number, rank)
            assert torch.equal(found[2][0], weights[rank]) and torch.equal(
                found[2][1], weights[2 + rank]
            ), (
                number,
                rank,
            )
        assert torch.equal(first[number][2][1], second[number][2][1])  # weights that both have


def test_fused_optimizers_agree_too() -> None:
    schedules = [
        [tuple(0.0 if one == NONE else one for one in step) for step in drawn(seed)]
        for seed in range(30)
    ]
    first, second = values(_schedules, AgreedGradScaler, schedules, True)
    for number, schedule in enumerate(schedules):
        scales, _, weights = train(
            GradScaler("cpu", **SMALL), schedule, (0, 1), True, number % 2 == 1
        )
        assert first[number][0] == second[number][0] == scales
        assert torch.equal(first[number][2][0], weights[0]) and torch.equal(
            second[number][2][0], weights[1]
        )


def test_plain_gradscalers_part_in_the_same_schedules() -> None:
    schedules = [
        [tuple(0.0 if one == NONE else one for one in step) for step in drawn(seed)]
        for seed in range(30)
    ]
    first, second = values(_schedules, GradScaler, schedules, False)
    assert sum(one[0] != other[0] for one, other in zip(first, second, strict=True)) > 25


def _no_gradient_anywhere() -> None:
    scaler = AgreedGradScaler("cpu")
    scaler.scale(torch.ones(()))
    scaler.step(torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1))


def test_no_gradient_on_any_rank_is_gradscalers_own_error() -> None:
    for report in on_ranks(_no_gradient_anywhere):
        assert report.failure is not None and "found no gradient to look at" in report.failure.told


def _a_rank_without_a_loss() -> float:
    scaler = AgreedGradScaler("cpu", init_scale=4.0)
    weight = nn.Parameter(torch.ones(1))
    if dist.get_rank() == 0:
        scaler.scale((weight * INF).sum()).backward()
    scaler.step(torch.optim.SGD([weight], lr=0.1))
    scaler.update()
    return scaler.get_scale()


def test_a_rank_that_scales_no_loss_follows_the_others() -> None:
    assert values(_a_rank_without_a_loss) == [2.0, 2.0]


def _load_scales(*scales: tuple[float, float]) -> None:
    """Take a step after each pair of scales is loaded: rank 0's and rank 1's."""
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scaler = AgreedGradScaler("cpu")
    for pair in scales:
        scaler.load_state_dict(GradScaler("cpu").state_dict() | {"scale": pair[dist.get_rank()]})
        scaler.scale(weight.sum()).backward()
        scaler.step(optimizer)
        scaler.update()


def test_scales_that_differ_are_told_on_all_ranks() -> None:
    for pairs in ([(2.0**10, 64.0)], [(8.0, 8.0), (2.0**10, 64.0)]):
        for report in on_ranks(_load_scales, *pairs):
            assert report.failure is not None and report.failure.kind == "raised"
            assert (
                "the ranks' loss scales differ: rank 0 has 1024, rank 1 has 64"
                in report.failure.told
            )
    values(_load_scales, (8.0, 8.0), (64.0, 64.0))


def _copy_with_a_group() -> float:
    scaler = AgreedGradScaler("cpu", init_scale=4.0, process_group=dist.new_group([0, 1]))
    return pickle.loads(pickle.dumps(scaler)).get_scale()


def test_a_scaler_with_a_group_can_be_copied() -> None:
    assert values(_copy_with_a_group) == [4.0, 4.0]


def _comparisons() -> int:
    """Count how often the scales are looked at, which makes the host wait."""
    scaler, looked = AgreedGradScaler("cpu"), []
    compare = scaler._compare
    scaler._compare = lambda scales: (looked.append(scales), compare(scales))  # type: ignore[method-assign,assignment,return-value]
    weight = nn.Parameter(torch.ones(1))
    for _ in range(4):
        scaler.scale(weight.sum()).backward()
        scaler.step(torch.optim.SGD([weight], lr=0.1))
        scaler.update()
    return len(looked)


def test_the_scales_are_looked_at_once() -> None:
    assert values(_comparisons) == [1, 1]


def _collectives(enabled: bool, alone: bool) -> int:
    from amp_course.distributed.ranks import collectives_so_far

    group = [dist.new_group([rank]) for rank in (0, 1)][dist.get_rank()] if alone else None
    scaler = AgreedGradScaler("cpu", enabled=enabled, process_group=group)
    weight = nn.Parameter(torch.ones(1))
    before = len(collectives_so_far())
    for _ in range(3):
        scaler.scale(weight.sum()).backward()
        scaler.step(torch.optim.SGD([weight], lr=0.1))
        scaler.update()
    return len(collectives_so_far()) - before


def test_one_collective_for_each_step_and_none_where_nobody_has_to_agree() -> None:
    assert values(_collectives, True, False) == [3, 3]
    assert values(_collectives, False, False) == values(_collectives, True, True) == [0, 0]


def test_state_and_copies_are_gradscalers() -> None:
    plain, agreed = GradScaler("cpu", **SMALL), AgreedGradScaler("cpu", **SMALL)
    train(plain, drawn(1, ranks=1, steps=0), (0,))
    plain.scale(torch.ones(()))
    agreed.load_state_dict(plain.state_dict())
    assert agreed.state_dict() == plain.state_dict()
    plain.load_state_dict(agreed.state_dict())
    agreed.scale(torch.ones(()))
    assert copy.deepcopy(agreed).get_scale() == agreed.get_scale() == 2.0**8


@pytest.mark.slow
def test_a_real_training_parts_by_hand_and_only_there() -> None:
    kinds = [kind for kind in KINDS if FSDP2_ON_CPU or kind != "fsdp2"]
    drifts = {kind: run_drift(kind, 80) for kind in kinds}
    for kind in kinds:
        if kind == "by hand":
            continue
        one = drifts[kind]
        assert one.parted is None and max(one.distance) == 0.0
        assert any(one.skipped[0]) and one.skipped[0] == one.skipped[1]
    fault = drifts["by hand"]
    assert fault.parted is not None and fault.skipped[0] != fault.skipped[1]
    assert max(fault.distance[: fault.parted - 1]) == 0.0 < fault.distance[-1]
