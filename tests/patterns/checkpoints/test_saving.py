from __future__ import annotations

import copy
import os
import pickle
import random
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from amp_course.patterns import (
    CheckpointError,
    Position,
    Run,
    check_resume,
    load_checkpoint,
    save_checkpoint,
)
from amp_course.patterns.checkpoints.checks import _ADDED


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
    return {
        "model": run.model,
        "optimizer": run.optimizer,
        "scaler": run.scaler,
        "scheduler": run.scheduler,
    }


def weights(run: Run) -> torch.Tensor:
    assert isinstance(run.model, nn.Module)
    return torch.cat([v.flatten().float() for v in run.model.state_dict().values()])


@pytest.mark.parametrize("every", [1, 2, 3])
def test_a_resumed_run_equals_an_unbroken_one(every: int) -> None:
    """AMP → AMP; with every > 1 the stop at 4 (every 3) or 5
    (every 2) is in the middle of an accumulation.
    """

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
    for mine, theirs in (
        (oracle.model, first.model),
        (oracle.optimizer, first.optimizer),
        (oracle.scheduler, first.scheduler),
    ):
        mine.load_state_dict(theirs.state_dict())
    assert isinstance(oracle.model, nn.Module) and isinstance(first.model, nn.Module)
    assert oracle.scaler is not None and first.scaler is not None
    for p, q in zip(oracle.model.parameters(), first.model.parameters(), strict=True):
        p.grad = (
            None
            if q.grad is None
            else q.grad / first.scaler.get_scale() * oracle.scaler.get_scale()
        )

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
    load_checkpoint(path, model=model, random_state=False)
    assert random.random() != drawn[2]


_CHILD = """
import builtins, sys, time, torch
from torch import nn
from amp_course.patterns.checkpoints import file, saving

class Slow:
    def __init__(self, file): self.file, self.left = file, 4000
    def __enter__(self): return self
    def __exit__(self, *_): pass
    def write(self, data):
        data = bytes(data)
        self.file.write(data[: self.left])
        self.left -= len(data)
        if self.left <= 0:
            self.file.flush()
            print("half", flush=True)
            time.sleep(60)
        return len(data)
    def flush(self): self.file.flush()

model = nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
nn.init.constant_(model.weight, 1.0)
saving.save_checkpoint(sys.argv[1], model=model, optimizer=optimizer, step=1)
nn.init.constant_(model.weight, 2.0)
file.open = lambda *a: Slow(builtins.open(*a))
saving.save_checkpoint(sys.argv[1], model=model, optimizer=optimizer, step=2)
"""


@pytest.mark.slow
def test_a_process_killed_while_it_saves_leaves_the_old_checkpoint_whole(tmp_path: Path) -> None:
    path = tmp_path / "run.pt"
    child = subprocess.Popen(
        [sys.executable, "-c", _CHILD, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == "half\n"
        child.send_signal(signal.SIGKILL)
        assert child.wait(30) == -signal.SIGKILL
    finally:
        child.kill()
        child.stdout.close()
    part = path.with_name("run.pt.part")
    assert part.stat().st_size > 0
    with pytest.raises(CheckpointError, match="truncated"):
        load_checkpoint(part, model=nn.Linear(64, 64))
    model = nn.Linear(64, 64)
    assert load_checkpoint(path, model=model).step == 1
    assert bool((model.weight == 1).all())
    save_checkpoint(
        path, model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), step=3
    )
    assert load_checkpoint(path, model=model).step == 3 and not part.exists()


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


@pytest.mark.parametrize("length", [1, 100, 3000, -1, -30])
def test_truncated(saved: Path, length: int) -> None:
    whole = saved.read_bytes()
    saved.write_bytes(whole[:length])
    with pytest.raises(CheckpointError, match=r"truncated|damaged"):
        load_checkpoint(saved, model=build().model)


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"", "empty"), (b"hello", "not a file of `torch.save`"), (b"\x80\x02}q\x00.", "not a")],
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


def test_of_another_optimizer(saved: Path) -> None:
    model = build().model
    assert isinstance(model, nn.Module)
    with pytest.raises(
        CheckpointError, match=r"groups hold \[2\] parameters, and the checkpoint's \[6\]"
    ):
        load_checkpoint(
            saved, model=model, optimizer=torch.optim.SGD(model[0].parameters(), lr=0.1)
        )


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
    with pytest.raises(TypeError, match=r"\['data'\]\['order'\]\[0\] is a function|data.*function"):
        save_checkpoint(tmp_path / "run.pt", **objects(run), step=1, data={"order": [lambda: 1]})
    assert not any(tmp_path.iterdir())


def test_refuses_to_save_between_unscale_and_update(tmp_path: Path) -> None:
    run = build()
    assert run.scaler is not None and isinstance(run.model, nn.Module)
    x, y = batch(0)
    run.scaler.scale(cross_entropy(run.model(x), y)).backward()
    run.scaler.unscale_(run.optimizer)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="before `unscale_`, or after `update`"):
        save_checkpoint(tmp_path / "run.pt", **objects(run), step=0, micro_step=1)


def everything(run: Run) -> dict[str, Any]:
    """Copy the state of a run and of the process: what a load may change."""
    assert isinstance(run.model, nn.Module) and isinstance(run.optimizer, torch.optim.Optimizer)
    numpy: Any = np.random.get_state(legacy=True)
    return {
        "model": {k: v.clone() for k, v in run.model.state_dict().items()},
        "grads": [None if p.grad is None else p.grad.clone() for p in run.model.parameters()],
        "state": copy.deepcopy(run.optimizer.state_dict()),
        "scaler": dict(run.scaler.state_dict()) if run.scaler else None,
        "scheduler": copy.deepcopy(run.scheduler.state_dict()),
        "random": [
            torch.get_rng_state(),
            torch.from_numpy(numpy[1].astype(np.int64)),
            numpy[2:],
            random.getstate(),
        ],
    }


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(equal(one[k], other[k]) for k in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


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
    sgd = torch.optim.SGD(run.model.parameters(), lr=0.1)
    with pytest.raises(CheckpointError, match=r"lacks momentum, .* of the optimizer's group 0"):
        load_checkpoint(path, model=run.model, optimizer=sgd, scaler=run.scaler)
    with pytest.raises(
        CheckpointError, match=r"torch.float32 there and torch.float64 here.*convert it afterwards"
    ):
        load_checkpoint(path, model=build().model.double())  # type: ignore[union-attr]
    assert equal(before, everything(run))


def test_an_option_that_the_older_torch_did_not_have_stays_as_it_is_here(tmp_path: Path) -> None:
    option = next(
        name for name in _ADDED if name not in torch.optim.LBFGS([torch.zeros(1)]).defaults
    )

    class Newer(torch.optim.LBFGS):
        """As LBFGS may be one day: an option more, which nothing fills in."""

        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters)
            self.param_groups[0][option] = True

    model = nn.Linear(3, 2)
    path = save_checkpoint(
        tmp_path / "run.pt",
        model=model,
        optimizer=torch.optim.LBFGS(model.parameters(), 0.5),
        step=1,
    )
    newer = Newer(model.parameters())
    load_checkpoint(path, model=model, optimizer=newer)
    assert newer.param_groups[0][option] is True and newer.param_groups[0]["lr"] == 0.5


def test_a_choice_left_to_torch_and_infinities_that_are_meant_are_loaded(tmp_path: Path) -> None:
    def make(foreach: bool | None) -> dict[str, Any]:
        model = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(
            [{"params": model.parameters(), "limit": float("inf")}],
            lr=0.1,
            momentum=0.9,
            foreach=foreach,
        )
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        return {"model": model, "optimizer": optimizer, "scheduler": plateau}

    path = save_checkpoint(tmp_path / "run.pt", **make(None), step=1)
    assert load_checkpoint(path, **make(True)).step == 1


def _schedulers(optimizer: torch.optim.Optimizer) -> list[Any]:
    every = torch.optim.lr_scheduler
    momentum = any(key in optimizer.param_groups[0] for key in ("momentum", "betas"))
    return [
        *([every.OneCycleLR(optimizer, 0.1, total_steps=20)] if momentum else []),
        every.MultiStepLR(optimizer, [2, 4]),
        every.LambdaLR(optimizer, lambda epoch: 0.5**epoch),
        every.SequentialLR(
            optimizer, [every.ConstantLR(optimizer), every.CosineAnnealingLR(optimizer, 9)], [2]
        ),
        every.ChainedScheduler([every.ConstantLR(optimizer), every.ExponentialLR(optimizer, 0.9)]),
        every.CyclicLR(optimizer, 0.1, 0.2, cycle_momentum=False),
        every.CosineAnnealingWarmRestarts(optimizer, 3),
    ]


_OPTIMIZERS = {
    "sgd": lambda ps: torch.optim.SGD(ps, lr=0.1),
    "momentum": lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9),
    "adam": lambda ps: torch.optim.Adam(ps, amsgrad=True),
    "adamw, tensor rate": lambda ps: torch.optim.AdamW(ps, lr=torch.tensor(0.1)),
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "adamax": torch.optim.Adamax,
    "rmsprop": lambda ps: torch.optim.RMSprop(ps, momentum=0.1, centered=True),
    "adagrad": torch.optim.Adagrad,
    "adadelta": torch.optim.Adadelta,
    "asgd": torch.optim.ASGD,
    "rprop": torch.optim.Rprop,
    "lbfgs": torch.optim.LBFGS,
    "adafactor": torch.optim.Adafactor,
    "two groups": lambda ps: torch.optim.SGD(
        [{"params": ps[:1]}, {"params": ps[1:], "lr": 0.2}], lr=0.1
    ),
}


@pytest.mark.parametrize("name", _OPTIMIZERS)
def test_every_optimizer_and_scheduler_of_torch_goes_on(tmp_path: Path, name: str) -> None:
    """A sound checkpoint is never refused: the next steps are those of the run that went on."""

    def make() -> tuple[nn.Module, torch.optim.Optimizer, list[Any]]:
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        optimizer = _OPTIMIZERS[name](list(model.parameters()))
        return model, optimizer, [] if name == "lbfgs" else _schedulers(optimizer)

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
                    one.step()
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
    assert equal(before, everything(run))


def test_gradients_of_a_scale_that_fell_to_zero(tmp_path: Path) -> None:
    run = _half_run(True, 2, 5)
    assert run.scaler is not None
    run.scaler.update(0.0)
    path = save_checkpoint(tmp_path / "run.pt", **objects(run), step=2, micro_step=1)
    assert load_checkpoint(path, **objects(build(2))).micro_step == 1
    with pytest.raises(CheckpointError, match="scaled by 0, so nothing is left"):
        load_checkpoint(path, model=build().model)


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    run = build()
    with pytest.raises(CheckpointError, match=r"is a folder: pass the name of a file in it"):
        save_checkpoint(tmp_path, **objects(run), step=1)
    with pytest.raises(CheckpointError, match=r"there is no folder .*mkdir"):
        save_checkpoint(tmp_path / "nowhere" / "run.pt", **objects(run), step=1)
    with (
        open(tmp_path / "open.pt", "wb") as file,
        pytest.raises(TypeError, match="path is a BufferedWriter: pass the name"),
    ):
        save_checkpoint(file, **objects(run), step=1)  # type: ignore[arg-type]
    with pytest.raises(
        CheckpointError, match=r"is a folder: pass the name of the checkpoint's file"
    ):
        load_checkpoint(tmp_path, model=build().model)
    for wrong, words in (
        (1.5, "step is 1.5: pass a whole number"),
        (torch.tensor(0.5), "pass a whole number"),
    ):
        with pytest.raises(TypeError, match=words):
            save_checkpoint(tmp_path / "x.pt", **objects(run), step=wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="micro_step is -1"):
        save_checkpoint(tmp_path / "x.pt", **objects(run), step=1, micro_step=-1)


_FULL = """
import resource, signal, sys, torch
from torch import nn
from amp_course.patterns import load_checkpoint, save_checkpoint

model = nn.Linear(256, 256)
parts = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}
path = sys.argv[1]
save_checkpoint(path, **parts, step=1)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
try:
    save_checkpoint(path, **parts, step=2)
except Exception as error:
    print(type(error).__name__, error)
print(load_checkpoint(path, model=model).step)
"""


@pytest.mark.slow
@pytest.mark.parametrize("room", [0, 1000, 100_000])
def test_a_disk_that_is_full_keeps_the_old_file(tmp_path: Path, room: int) -> None:
    """A limit on the size of files stands for a full disk:
    the system answers `write` in the same way.
    """
    pytest.importorskip("resource")
    path = tmp_path / "run.pt"
    result = subprocess.run(
        [sys.executable, "-c", _FULL, str(path), str(room)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    said, step = result.stdout.splitlines()
    assert said.startswith(
        f"CheckpointError {path} could not be written, and whatever was there before is unchanged: "
    )
    assert "larger than the system allows. Raise the limit" in said, result.stderr
    assert step == "1"
    assert [one.name for one in tmp_path.iterdir()] == ["run.pt"]


def test_a_folder_or_file_without_permission(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saved: Path
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("amp_course.patterns.checkpoints.file.open", refuse, raising=False)
    with pytest.raises(CheckpointError, match=r"could not be written, .*: you have no permission"):
        save_checkpoint(tmp_path / "new.pt", **objects(build()), step=1)
    monkeypatch.setattr(torch, "load", refuse)
    with pytest.raises(CheckpointError, match="could not be read: you have no permission"):
        load_checkpoint(saved, model=build().model)
