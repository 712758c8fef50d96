"""What is no checkpoint of this run is refused, and changes nothing."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from amp_course.kit.nested import copied, first_difference
from amp_course.kit.random_state import random_state
from amp_course.patterns import CheckpointError, Run, load_checkpoint, save_checkpoint
from tests.patterns.checkpoints.runs import _half_run, batch, build, objects, weights


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
    assert run.scaler.get_scale() == 2.0**12


def test_refuses_to_save_what_it_could_not_load(tmp_path: Path) -> None:
    run = build()
    with pytest.raises(TypeError, match=r"data.*function"):
        save_checkpoint(tmp_path / "run.pt", **objects(run), step=1, data={"order": [lambda: 1]})
    run.scaler.scale(cross_entropy(run.model(batch(0)[0]), batch(0)[1])).backward()
    run.scaler.unscale_(run.optimizer)
    with pytest.raises(ValueError, match="before `unscale_`, or after `update`"):
        save_checkpoint(tmp_path / "run.pt", **objects(run), step=0, micro_step=1)
    assert not any(tmp_path.iterdir())


def test_an_option_that_the_older_torch_did_not_have_stays_as_it_is_here(saved: Path) -> None:
    content = torch.load(saved, weights_only=True)
    content["optimizer"][0]["param_groups"][0].pop("maximize")
    torch.save(content, saved)
    run = build()
    run.optimizer.param_groups[0]["maximize"] = True
    load_checkpoint(saved, **objects(run))
    assert run.optimizer.param_groups[0]["maximize"] is True


def everything(run: Run) -> dict[str, Any]:
    """Copy the state of a run and of the process: what a load may change."""
    parts = {name: part.state_dict() for name, part in objects(run).items()}
    return copied({**parts, "grads": [p.grad for p in run.model.parameters()], **random_state()})


def test_a_scheduler_or_optimizer_of_another_kind(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path / "run.pt", **objects(_half_run(True, 1, 3)), step=3)
    run = build()
    before = everything(run)
    step = torch.optim.lr_scheduler.StepLR(run.optimizer, 5)
    with pytest.raises(
        CheckpointError, match="the scheduler is a StepLR, which has no T_max, eta_min"
    ):
        load_checkpoint(path, model=run.model, scaler=run.scaler, scheduler=step)
    sgd = torch.optim.SGD(run.model[0].parameters(), lr=0.1)
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
        load_checkpoint(path, model=build().model.double())
    assert first_difference(before, everything(run)) is None


def test_an_object_that_refuses_its_state_leaves_the_others_alone(tmp_path: Path) -> None:
    class Stubborn(torch.optim.lr_scheduler.CosineAnnealingLR):
        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            raise KeyError("no")

    path = save_checkpoint(tmp_path / "run.pt", **objects(_half_run(True, 1, 3)), step=3)
    run = build()
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
