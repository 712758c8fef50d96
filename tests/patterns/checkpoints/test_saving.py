"""A run that is saved and loaded goes on as if it had not stopped."""

from __future__ import annotations

import copy
import random
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from amp_course.patterns import (
    CheckpointError,
    Position,
    Run,
    check_resume,
    load_checkpoint,
    save_checkpoint,
)
from tests.patterns.checkpoints.runs import _half_run, build, objects, weights


@pytest.mark.parametrize("every", [1, 2, 3])
def test_a_resumed_run_equals_an_unbroken_one(every: int) -> None:
    """With every > 1 the stop at 4 (of 3 each) or 5 (of 2) is in the middle of an accumulation."""

    def save(run: Run, path: Path, number: int) -> None:
        save_checkpoint(
            path, **objects(run), step=number // every, micro_step=number % every, data={"epoch": 1}
        )

    def load(run: Run, path: Path) -> int:
        position = load_checkpoint(path, **objects(run))
        return position.step * every + position.micro_step

    for stop in (4, 5):
        assert check_resume(lambda: build(every), save, load, steps=9, stop=stop).names == ()


@pytest.mark.parametrize(("before", "after"), [(True, False), (False, True)])
@pytest.mark.parametrize("stop", [4, 5])
def test_from_amp_to_fp32_and_back(tmp_path: Path, before: bool, after: bool, stop: int) -> None:
    """Changing the recipe at a stop equals changing it in one process;
    at 5 of 2 each, in the middle of an accumulation.
    """
    path = tmp_path / "run.pt"
    first = _half_run(before, 2, stop)
    position = {"step": stop // 2, "micro_step": stop % 2}
    save_checkpoint(path, **objects(first), **position)

    # The oracle: a second run, given the live objects' states by hand, gradients unscaled and
    # scaled by hand.
    oracle = build(2, after)
    for part in ("model", "optimizer", "scheduler"):
        getattr(oracle, part).load_state_dict(getattr(first, part).state_dict())
    for p, q in zip(oracle.model.parameters(), first.model.parameters(), strict=True):
        if q.grad is not None:
            p.grad = q.grad / first.scaler.get_scale() * oracle.scaler.get_scale()

    resumed = build(2, after)
    assert load_checkpoint(path, **objects(resumed), fresh_scaler=True) == Position(**position)
    for run in (oracle, resumed):
        torch.manual_seed(9)
        for number in range(stop, 8):
            run.step(number)
    assert torch.equal(weights(oracle), weights(resumed))


def test_several_models_and_their_order(tmp_path: Path) -> None:
    a, b = nn.Linear(2, 3), nn.Linear(2, 3)
    optimizers = [torch.optim.SGD(a.parameters(), lr=0.1), torch.optim.Adam(b.parameters())]
    path = save_checkpoint(tmp_path / "run.pt", model=[a, b], optimizer=optimizers, step=7)
    c, d = nn.Linear(2, 3), nn.Linear(2, 3)
    assert load_checkpoint(path, model=[c, d]).step == 7
    assert torch.equal(a.weight, c.weight) and torch.equal(b.weight, d.weight)
    with pytest.raises(CheckpointError, match="holds 2, and 1 were passed"):
        load_checkpoint(path, model=c)


def test_carries_all_random_states(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    path = save_checkpoint(tmp_path / "run.pt", model=model, optimizer=optimizer, step=1)
    drawn = torch.rand(3), np.random.rand(3), random.random()
    load_checkpoint(path, model=model, optimizer=optimizer)
    assert torch.equal(torch.rand(3), drawn[0])
    assert (np.random.rand(3) == drawn[1]).all()
    assert random.random() == drawn[2]


def _schedulers(optimizer: torch.optim.Optimizer) -> list[Any]:
    every = torch.optim.lr_scheduler
    return [
        every.MultiStepLR(optimizer, [2, 4]),
        every.LambdaLR(optimizer, lambda epoch: 0.5**epoch),
        every.SequentialLR(
            optimizer, [every.ConstantLR(optimizer), every.CosineAnnealingLR(optimizer, 9)], [2]
        ),
        every.ChainedScheduler([every.ConstantLR(optimizer), every.ExponentialLR(optimizer, 0.9)]),
        every.OneCycleLR(optimizer, 0.1, total_steps=20, cycle_momentum=False),
        every.ReduceLROnPlateau(optimizer),
    ]


_OPTIMIZERS: dict[str, dict[str, Any]] = {  # a class of torch.optim → its options
    "SGD": {"lr": 0.1, "momentum": 0.9},
    "Adam": {"amsgrad": True},
    "AdamW": {"lr": torch.tensor(0.1)},
    "NAdam": {},
    "RMSprop": {"momentum": 0.1, "centered": True},
    "Adagrad": {},
    "ASGD": {},
    "LBFGS": {},
    "Adafactor": {},
}


@pytest.mark.parametrize("name", _OPTIMIZERS)
def test_every_optimizer_and_scheduler_of_torch_goes_on(tmp_path: Path, name: str) -> None:
    """A sound checkpoint is never refused: the next steps are those of the run that went on."""

    def make() -> tuple[nn.Module, torch.optim.Optimizer, list[Any]]:
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        groups: Any = model.parameters()
        if name == "SGD":
            groups = [{"params": [model.weight]}, {"params": [model.bias], "lr": 0.2}]
        optimizer = getattr(torch.optim, name)(groups, **copy.deepcopy(_OPTIMIZERS[name]))
        return model, optimizer, [] if name == "LBFGS" else _schedulers(optimizer)

    def train(
        model: nn.Module, optimizer: torch.optim.Optimizer, schedulers: list[Any], steps: int
    ) -> torch.Tensor:
        for _ in range(steps):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")

                def closure() -> torch.Tensor:
                    optimizer.zero_grad()
                    loss = model(torch.ones(4, 3)).square().sum()
                    loss.backward()
                    return loss

                optimizer.step(closure)
                for one in schedulers:
                    one.step(*[1.0] * isinstance(one, torch.optim.lr_scheduler.ReduceLROnPlateau))
        return nn.utils.parameters_to_vector(model.parameters()).detach()

    model, optimizer, schedulers = make()
    train(model, optimizer, schedulers, 3)
    path = save_checkpoint(
        tmp_path / "run.pt", model=model, optimizer=optimizer, scheduler=schedulers, step=3
    )
    again = make()
    load_checkpoint(path, model=again[0], optimizer=again[1], scheduler=again[2])
    assert torch.equal(train(*again, 3), train(model, optimizer, schedulers, 3))
