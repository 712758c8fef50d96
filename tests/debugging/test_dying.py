"""The recorded run: it learns, gets hot from the last block on, dies, and stays dead."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from amp_course.debugging.dying import STEPS_AFTER_DEATH, record_dying_run, start_dying_run
from amp_course.debugging.headroom import DivergingRun
from amp_course.watching.readings import KINDS, Ranges


@pytest.fixture(
    scope="module", params=[0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))]
)
def run(request: pytest.FixtureRequest) -> DivergingRun:
    return record_dying_run(seed=request.param)


def first_within(run: DivergingRun, doublings: float, modules: str = "") -> int | None:
    """The first step in which an activation of some modules had at most so many doublings left."""
    steps = [
        one.number
        for module, readings in run.ranges.of("activation").items()
        for one in readings
        if module.startswith(modules)
        and not math.log2(65504 / one.largest if one.finite else 0.5) > doublings
    ]
    return min(steps, default=None)


def test_it_lives_for_thirty_steps_and_more_and_dies_for_good(run: DivergingRun) -> None:
    assert run.death is not None and 30 <= run.death <= 60 - STEPS_AFTER_DEATH
    assert len(run.losses) == run.death + STEPS_AFTER_DEATH
    assert not any(map(math.isfinite, run.losses[run.death - 1 :]))
    assert run.skipped == tuple(range(run.death, len(run.losses) + 1))
    weights = run.ranges.of("weight")["block4.shrink.weight"]
    assert len({one.largest for one in weights[run.death - 1 :]}) == 1  # learns nothing any more
    assert len({one.largest for one in weights[: run.death]}) > run.death / 2


def test_it_learns_until_it_dies(run: DivergingRun) -> None:
    assert run.death is not None
    alive = run.losses[: run.death - 1]
    assert alive[0] == pytest.approx(1.0, abs=0.01)  # outputs near 0, and so a relative error of 1
    assert all(after <= before + 1e-6 for before, after in itertools.pairwise(alive))
    assert alive[-1] < 0.5


def test_it_is_hot_for_some_ten_steps_first_in_the_last_block(run: DivergingRun) -> None:
    four, two = first_within(run, 4), first_within(run, 2)
    assert run.death is not None and four is not None and two is not None
    assert run.death - four >= 7 and 2 <= run.death - two < run.death - four
    warm = [first_within(run, 10, f"block{number}") for number in (4, 3, 2, 1)]
    known = [step for step in warm if step is not None]
    # The blocks get warm one after the other.
    assert known == warm[: len(known)] == sorted(set(known)) and len(known) >= 3
    assert first_within(run, 4, "block4") == four


def test_all_kinds_are_measured_in_every_step(run: DivergingRun) -> None:
    every_step = [*range(1, len(run.losses) + 1)]
    for kind in KINDS:
        found = run.ranges.of(kind)
        assert found and all(
            [one.number for one in readings] == every_step for readings in found.values()
        )


def test_it_can_be_repeated_and_leaves_no_trace() -> None:
    torch.manual_seed(3)
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    first, second = (record_dying_run(steps=3, seed=1) for _ in range(2))
    assert first.losses == second.losses != record_dying_run(steps=3, seed=2).losses
    assert torch.get_num_threads() == threads and torch.equal(torch.get_rng_state(), state)


def test_the_unit_of_the_targets_is_what_kills_it() -> None:
    training = start_dying_run()
    pixels, ink = training.batch
    assert ink.min() > 65504  # every one is beyond fp16
    losses = [training.step(pixels, ink / 1000).item() for _ in range(60)]
    assert all(map(math.isfinite, losses)) and losses[-1] < 0.1


@pytest.mark.parametrize(
    ("losses", "death"), [((1.0, 2.0), None), ((1.0, math.nan, 1.0), 2), ((1.0, 1.0, math.inf), 3)]
)
def test_death_is_the_first_loss_that_is_not_finite(
    losses: tuple[float, ...], death: int | None
) -> None:
    assert DivergingRun(Ranges("fp16", 1, []), losses, ()).death == death
