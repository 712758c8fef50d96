from __future__ import annotations

import os
import pickle
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from amp_course.patterns import CheckpointError, Position, Run, check_resume, load_checkpoint, save_checkpoint


def batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    return torch.randn(8, 16, generator=generator), torch.randint(0, 5, (8,), generator=generator)


def build(every: int = 1, amp: bool = True, width: int = 24) -> Run:
    """A run with all that can be forgotten: batch norm, dropout, Adam, a moving scale, a schedule."""
    state = torch.get_rng_state()
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(16, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.3), nn.Linear(width, 5))
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
    return {"model": run.model, "optimizer": run.optimizer, "scaler": run.scaler, "scheduler": run.scheduler}


def weights(run: Run) -> torch.Tensor:
    assert isinstance(run.model, nn.Module)
    return torch.cat([v.flatten().float() for v in run.model.state_dict().values()])


@pytest.mark.parametrize("every", [1, 2, 3])
def test_a_resumed_run_equals_an_unbroken_one(every: int) -> None:
    """AMP → AMP; with every > 1 the stop at 4 (every 3) or 5 (every 2) is in the middle of an accumulation."""

    def save(run: Run, path: Path, number: int) -> None:
        save_checkpoint(path, **objects(run), step=number // every, micro_step=number % every, data={"epoch": 1})

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
    """Changing the recipe at a stop equals changing it in one process; at 5 of 2 each, in the middle of an accumulation."""
    path = tmp_path / "run.pt"
    first = _half_run(before, 2, stop)
    position = {"step": stop // 2, "micro_step": stop % 2}
    save_checkpoint(path, **objects(first), **position)

    # The oracle: a second run, given the live objects' states by hand, gradients unscaled and scaled by hand.
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
        p.grad = None if q.grad is None else q.grad / first.scaler.get_scale() * oracle.scaler.get_scale()

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
    with pytest.raises(CheckpointError, match="holds 2 of the kind model and 1"):
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
from amp_course.patterns import checkpoint

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
checkpoint.save_checkpoint(sys.argv[1], model=model, optimizer=optimizer, step=1)
nn.init.constant_(model.weight, 2.0)
checkpoint.open = lambda *a: Slow(builtins.open(*a))
checkpoint.save_checkpoint(sys.argv[1], model=model, optimizer=optimizer, step=2)
"""


def test_a_process_killed_while_it_saves_leaves_the_old_checkpoint_whole(tmp_path: Path) -> None:
    path = tmp_path / "run.pt"
    child = subprocess.Popen([sys.executable, "-c", _CHILD, str(path)], stdout=subprocess.PIPE, text=True)
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
    save_checkpoint(path, model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), step=3)
    assert load_checkpoint(path, model=model).step == 3 and not part.exists()


class _Code:
    def __reduce__(self):
        return os.system, (f"touch {os.environ['AMP_TEST_TOUCH']}",)


def test_a_pickle_with_code_is_refused_and_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    ("content", "words"), [(b"", "empty"), (b"hello", "not a file of `torch.save`"), (b"\x80\x02}q\x00.", "not a")]
)
def test_not_a_checkpoint(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "x.pt").write_bytes(content)
    with pytest.raises(CheckpointError, match=words):
        load_checkpoint(tmp_path / "x.pt", model=build().model)


def test_weights_alone_and_no_file(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    with pytest.raises(CheckpointError, match=r"keys 'weight', 'bias', not a checkpoint.*load_state_dict"):
        load_checkpoint(tmp_path / "weights.pt", model=model)
    with pytest.raises(CheckpointError, match="there is no file"):
        load_checkpoint(tmp_path / "nowhere.pt", model=model)


def test_of_another_model_changes_nothing(saved: Path) -> None:
    other = build(width=25)
    before = weights(other)
    with pytest.raises(CheckpointError, match=r"0.weight is \(24, 16\) there and \(25, 16\) here, .* and 4 more"):
        load_checkpoint(saved, **objects(other))
    assert torch.equal(before, weights(other))
    with pytest.raises(CheckpointError, match=r"it lacks weight, bias; it has 0.weight, .* besides"):
        load_checkpoint(saved, model=nn.Linear(3, 3))


def test_of_another_optimizer(saved: Path) -> None:
    model = build().model
    assert isinstance(model, nn.Module)
    with pytest.raises(CheckpointError, match=r"groups hold \[2\] parameters and the checkpoint's \[6\]"):
        load_checkpoint(saved, model=model, optimizer=torch.optim.SGD(model[0].parameters(), lr=0.1))


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
