from __future__ import annotations

import copy
import os
import pickle
import random
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from amp_course.kit.nested import copied, first_difference
from amp_course.kit.random_state import random_state
from amp_course.patterns import (
    CheckpointError,
    Position,
    Run,
    check_resume,
    load_checkpoint,
    save_checkpoint,
)


def batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    return torch.randn(8, 16, generator=generator), torch.randint(0, 5, (8,), generator=generator)


def build(every: int = 1, amp: bool = True, width: int = 24) -> Run:
    """A run with all that can be forgotten: batch norm, dropout, Adam, a moving scale,
    a schedule.
    """
    state = torch.get_rng_state()
    torch.manual_seed(5)
    model = nn.Sequential(
        nn.Linear(16, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.3), nn.Linear(width, 5)
    )
    torch.set_rng_state(state)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=2, enabled=amp)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)

    def step(number: int) -> None:
        x, y = batch(number)
        with torch.autocast("cpu", dtype=torch.float16, enabled=amp):
            loss = cross_entropy(model(x), y) / every
        scaler.scale(loss).backward()
        if (number + 1) % every == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            scheduler.step()

    return Run(step, model, optimizer, scaler, scheduler)


def objects(run: Run) -> dict[str, Any]:
    return {name: getattr(run, name) for name in ("model", "optimizer", "scaler", "scheduler")}


def weights(run: Run) -> torch.Tensor:
    assert isinstance(run.model, nn.Module)
    return torch.cat([v.flatten().float() for v in run.model.state_dict().values()])


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


def _half_run(amp: bool, every: int, steps: int) -> Run:
    torch.manual_seed(1)
    run = build(every, amp)
    for number in range(steps):
        run.step(number)
    return run


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
    assert isinstance(oracle.model, nn.Module) and isinstance(first.model, nn.Module)
    assert oracle.scaler is not None and first.scaler is not None
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


class _Code:
    def __reduce__(self):
        return os.system, (f"touch {os.environ['AMP_TEST_TOUCH']}",)


def test_a_pickle_with_code_is_refused_and_never_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touched = tmp_path / "touched"
    monkeypatch.setenv("AMP_TEST_TOUCH", str(touched))
    torch.save({"kind": _Code()}, tmp_path / "zip.pt")
    (tmp_path / "bare.pt").write_bytes(pickle.dumps(_Code(), protocol=2))
    for name in ("zip.pt", "bare.pt"):
        with pytest.raises(CheckpointError, match=r"asks to call \w+\.system, and was refused"):
            load_checkpoint(tmp_path / name, model=nn.Linear(1, 1))
    assert not touched.exists()
    torch.load(tmp_path / "zip.pt", weights_only=False)  # the danger is real
    assert touched.exists()


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return save_checkpoint(tmp_path / "run.pt", **objects(_half_run(True, 1, 2)), step=2)


@pytest.mark.parametrize("length", [1, 3000, -1])
def test_truncated(saved: Path, length: int) -> None:
    whole = saved.read_bytes()
    saved.write_bytes(whole[:length])
    with pytest.raises(CheckpointError, match=r"truncated|damaged"):
        load_checkpoint(saved, model=build().model)


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"", "empty"), (b"hello", "not a file of `torch.save`")],
)
def test_not_a_checkpoint(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "x.pt").write_bytes(content)
    with pytest.raises(CheckpointError, match=words):
        load_checkpoint(tmp_path / "x.pt", model=build().model)


def test_weights_alone_and_no_file(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    with pytest.raises(
        CheckpointError, match=r"keys 'weight', 'bias', not a checkpoint.*load_state_dict"
    ):
        load_checkpoint(tmp_path / "weights.pt", model=model)
    with pytest.raises(CheckpointError, match="there is no file"):
        load_checkpoint(tmp_path / "nowhere.pt", model=model)


def test_of_another_model_changes_nothing(saved: Path) -> None:
    other = build(width=25)
    before = weights(other)
    with pytest.raises(
        CheckpointError, match=r"0.weight is \(24, 16\) there and \(25, 16\) here, .* and 4 more"
    ):
        load_checkpoint(saved, **objects(other))
    assert torch.equal(before, weights(other))
    with pytest.raises(
        CheckpointError, match=r"it lacks weight, bias; it has 0.weight, .* as well"
    ):
        load_checkpoint(saved, model=nn.Linear(3, 3))


def test_without_a_scaler(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path / "run.pt", **objects(_half_run(False, 1, 2)), step=2)
    run = build()
    before = weights(run)
    with pytest.raises(CheckpointError, match=r"no scaler's state.*fresh_scaler=True"):
        load_checkpoint(path, **objects(run))
    assert torch.equal(before, weights(run))
    assert load_checkpoint(path, **objects(run), fresh_scaler=True).step == 2
    assert run.scaler is not None and run.scaler.get_scale() == 2.0**12


def test_refuses_to_save_what_it_could_not_load(tmp_path: Path) -> None:
    run = build()
    with pytest.raises(TypeError, match=r"data.*function"):
        save_checkpoint(tmp_path / "run.pt", **objects(run), step=1, data={"order": [lambda: 1]})
    assert run.scaler is not None and isinstance(run.model, nn.Module)
    run.scaler.scale(cross_entropy(run.model(batch(0)[0]), batch(0)[1])).backward()
    run.scaler.unscale_(run.optimizer)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="before `unscale_`, or after `update`"):
        save_checkpoint(tmp_path / "run.pt", **objects(run), step=0, micro_step=1)
    assert not any(tmp_path.iterdir())


def test_an_option_that_the_older_torch_did_not_have_stays_as_it_is_here(saved: Path) -> None:
    content = torch.load(saved, weights_only=True)
    content["optimizer"][0]["param_groups"][0].pop("maximize")
    torch.save(content, saved)
    run = build()
    assert isinstance(run.optimizer, torch.optim.Optimizer)
    run.optimizer.param_groups[0]["maximize"] = True
    load_checkpoint(saved, **objects(run))
    assert run.optimizer.param_groups[0]["maximize"] is True


def everything(run: Run) -> dict[str, Any]:
    """Copy the state of a run and of the process: what a load may change."""
    parts = {name: part.state_dict() for name, part in objects(run).items()}
    assert isinstance(run.model, nn.Module)
    return copied({**parts, "grads": [p.grad for p in run.model.parameters()], **random_state()})


def test_a_scheduler_or_optimizer_of_another_kind(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path / "run.pt", **objects(_half_run(True, 1, 3)), step=3)
    run = build()
    assert isinstance(run.model, nn.Module) and isinstance(run.optimizer, torch.optim.Optimizer)
    before = everything(run)
    step = torch.optim.lr_scheduler.StepLR(run.optimizer, 5)
    with pytest.raises(
        CheckpointError, match="the scheduler is a StepLR, which has no T_max, eta_min"
    ):
        load_checkpoint(path, model=run.model, scaler=run.scaler, scheduler=step)
    sgd = torch.optim.SGD(run.model[0].parameters(), lr=0.1)  # type: ignore[index]
    with pytest.raises(
        CheckpointError, match=r"groups hold \[2\] parameters, and the checkpoint's \[6\]"
    ):
        load_checkpoint(path, model=run.model, optimizer=sgd, scaler=run.scaler)
    sgd = torch.optim.SGD(run.model.parameters(), lr=0.1)
    with pytest.raises(CheckpointError, match=r"lacks momentum, .* of the optimizer's group 0"):
        load_checkpoint(path, model=run.model, optimizer=sgd, scaler=run.scaler)
    with pytest.raises(
        CheckpointError, match=r"torch.float32 there and torch.float64 here.*convert it afterwards"
    ):
        load_checkpoint(path, model=build().model.double())  # type: ignore[union-attr]
    assert first_difference(before, everything(run)) is None


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

                optimizer.step(closure)  # type: ignore[arg-type]
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


def test_an_object_that_refuses_its_state_leaves_the_others_alone(tmp_path: Path) -> None:
    class Stubborn(torch.optim.lr_scheduler.CosineAnnealingLR):
        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            raise KeyError("no")

    path = save_checkpoint(tmp_path / "run.pt", **objects(_half_run(True, 1, 3)), step=3)
    run = build()
    assert isinstance(run.optimizer, torch.optim.Optimizer)
    run.scheduler = Stubborn(run.optimizer, 20)
    before = everything(run)
    with pytest.raises(CheckpointError, match="refused: 'no'"):
        load_checkpoint(path, **objects(run))
    assert first_difference(before, everything(run)) is None


def test_a_place_that_cannot_be_written_or_read(tmp_path: Path) -> None:
    run = build()
    with pytest.raises(CheckpointError, match="is a folder: pass the name of a file in it"):
        save_checkpoint(tmp_path, **objects(run), step=1)
    with pytest.raises(CheckpointError, match=r"there is no folder .*mkdir"):
        save_checkpoint(tmp_path / "nowhere" / "run.pt", **objects(run), step=1)
    with pytest.raises(CheckpointError, match="is a folder: pass the name of the checkpoint's"):
        load_checkpoint(tmp_path, model=build().model)


@pytest.mark.parametrize(
    ("raised", "words"),
    [
        (PermissionError(13, "Permission denied"), "you have no permission"),
        (OSError(28, "No space left on device"), "the disk is full"),
    ],
)
def test_a_write_that_fails_keeps_the_old_file(
    saved: Path, monkeypatch: pytest.MonkeyPatch, raised: OSError, words: str
) -> None:
    def fails(content: Any, file: Any) -> None:
        file.write(b"half")
        raise raised

    before = saved.read_bytes()
    monkeypatch.setattr(torch, "save", fails)
    with pytest.raises(
        CheckpointError, match=rf"could not be written, and .* unchanged: .*{words}"
    ):
        save_checkpoint(saved, **objects(build()), step=1)
    assert saved.read_bytes() == before and [*saved.parent.iterdir()] == [saved]


def test_a_file_that_cannot_be_read(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(torch, "load", refuse)
    with pytest.raises(CheckpointError, match="could not be read: you have no permission"):
        load_checkpoint(saved, model=build().model)
