"""Judge the saving of a training, by resuming it and by killing a save; and the loading of one, from good files and bad."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn

from amp_course.checking import Wrong
from amp_course.checking.asking import integer
from amp_course.checking.values import fresh
from amp_course.checking.witness import drawn_seed
from amp_course.patterns.judges.small_trainings import World, differences, drawn_batches, equal

KEYS = ("model", "optimizer", "scaler", "scheduler", "rng", "step")
_BEFORE, _AFTER = 6, 4  # steps before a save and after a resume: at the save the scaler's streak is 2 of 4
_ran: list[str] = []  # what a pickle with code in it leaves behind


class Killed(BaseException):
    """Raised in the middle of a save, as a process that is killed stops there."""


class _Bomb:
    def __reduce__(self) -> Any:
        raise Killed


def judge_save_training(answer: Callable[..., Any]) -> None:
    """`save_training(path, model, optimizer, scaler, scheduler, step)`: one file, whole at any moment."""
    with tempfile.TemporaryDirectory() as folder, torch.random.fork_rng(devices=[]):
        path = Path(folder) / "run.pt"
        _check_resumed_run(answer, path)
        _check_killed_save(answer, path)


def _save(answer: Callable[..., Any], path: Path, world: World, step: int) -> None:
    answer(path, world.model, world.optimizer, world.scaler, world.scheduler, step)


def _check_resumed_run(answer: Callable[..., Any], path: Path) -> None:
    batches = drawn_batches(fresh(), _BEFORE + _AFTER)
    torch.manual_seed(drawn_seed())
    unbroken = World()
    unbroken.train(batches[:_BEFORE])
    before = unbroken.parts()
    _save(answer, path, unbroken, _BEFORE)
    for part, value in unbroken.parts().items():
        if not equal(value, before[part]):
            raise Wrong(f"saving changed the run: its {part} is not what it was before. A save only reads")
    state = _loaded(path)
    unbroken.train(batches[_BEFORE:])

    torch.manual_seed(drawn_seed())
    resumed = World(init_scale=2.0**10)
    _restore(resumed, state, before)
    resumed.train(batches[_BEFORE:])
    if not equal(resumed.parts(), unbroken.parts()):
        raise Wrong("a run that was resumed from the file is not the unbroken one, to the last bit")


def _loaded(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise Wrong(
            f"there is no file at the path that was handed in, `{path.name}`: it has to appear under that very name"
        )
    try:
        state = torch.load(path, weights_only=True)
    except Exception as error:
        raise Wrong(
            f"`torch.load(path, weights_only=True)` refuses the file ({type(error).__name__}): put `state_dict()`s, "
            "tensors and numbers into it, and no models or optimizers. Whole objects are code, which a reader of the "
            "file would have to run"
        ) from error
    if not isinstance(state, dict):
        raise Wrong(
            f"the file holds a {type(state).__name__}, and the task asks for a dict with the keys {', '.join(KEYS)}"
        )
    missing = [key for key in KEYS if key not in state]
    if missing:
        raise Wrong(f"`{missing[0]}` is not in the file: {_LOST[missing[0]]}")
    return state


_LOST = {
    "model": "without the weights there is nothing to go on with",
    "optimizer": "Adam would start over with its averages at 0, and the first steps would be far too long",
    "scaler": "the scale and the streak of clean steps start over, and the run skips steps to find the scale again",
    "scheduler": "the learning rate starts over with its schedule",
    "rng": "dropout draws other masks than in the unbroken run. It is `torch.get_rng_state()`",
    "step": "nobody knows which batch comes next",
}


def _restore(world: World, state: dict[str, Any], before: dict[str, Any]) -> None:
    """Load what the file holds, part by part; raise `Wrong` for the first that is not as it was saved."""
    if state["step"] != _BEFORE:
        raise Wrong(f"the file's `step` is {state['step']!r}, and {_BEFORE} was handed in")
    loads: dict[str, Callable[[Any], Any]] = {
        "model": world.model.load_state_dict,
        "optimizer": world.optimizer.load_state_dict,
        "scaler": world.scaler.load_state_dict if world.scaler else lambda state: None,
        "scheduler": world.scheduler.load_state_dict,
        "rng": torch.set_rng_state,
    }
    for part, load in loads.items():
        try:
            load(state[part])
        except Exception as error:
            raise Wrong(
                f"what the file holds under `{part}` cannot be loaded ({type(error).__name__}: "
                f"{str(error).splitlines()[0]}): {_WANTED[part]}"
            ) from error
    for part, value in world.parts().items():
        if not equal(value, before[part]):
            raise Wrong(f"what the file holds under `{part}` is not what the run had: {_WANTED[part]}")


_WANTED = {
    "model": "`model.state_dict()` has the parameters and the running statistics of batch norm",
    "optimizer": "`optimizer.state_dict()` has the averages and the learning rate",
    "scaler": "`scaler.state_dict()` has the scale, the streak of clean steps and the rule's numbers",
    "scheduler": "`scheduler.state_dict()`",
    "rng": "`torch.get_rng_state()`, as it is when the save is called. A seed says where the draws began, not where they are",
}


def _check_killed_save(answer: Callable[..., Any], path: Path) -> None:
    """Save over an old file: once to the end, with a second name on the old file, and once killed in the middle."""
    world, old = World(), path.read_bytes()
    world.train(drawn_batches(fresh(), 1))
    bomb = mock.patch.object(world.scheduler, "state_dict", lambda: {"last_epoch": 1, "bomb": _Bomb()})
    with bomb, contextlib.suppress(Killed):
        _save(answer, path, world, 7)
    now = path.read_bytes() if path.exists() else b""
    if now != old:
        raise Wrong(
            f"the save was killed in the middle, and of the old checkpoint of {len(old):,} bytes {len(now):,} are "
            "left, which nobody can load. Write into a temporary file in the same folder, then `os.replace(temporary, path)`"
        )
    second = path.with_name("second name")
    with contextlib.suppress(OSError):  # a file system without hard links
        os.link(path, second)
    with _watched(path):
        _save(answer, path, world, 8)
    if second.exists() and second.read_bytes() != old:
        raise Wrong(
            "the old file was written over in place, so that a kill at that moment leaves a piece of the new one. The "
            "last act has to be a rename: `os.replace(temporary, path)`"
        )
    if _loaded(path)["step"] != 8:
        raise Wrong("a second save to the same path left the old checkpoint there: the new one takes its place")


@contextlib.contextmanager
def _watched(path: Path) -> Iterator[None]:
    """Let files be renamed and removed as ever, and raise `Wrong` where that opens a gap with no checkpoint."""
    calls = {name: getattr(os, name) for name in ("replace", "rename", "remove", "unlink")}

    def moved(name: str, source: Any, target: Any, **options: Any) -> None:
        if Path(source) == path:
            raise Wrong(
                "the old checkpoint was moved out of the way first: killed now, the run has none under its name"
            )
        if Path(target) == path and Path(source).resolve().parent != path.resolve().parent:
            raise Wrong(
                "the temporary file is in another folder, which may be another disk: there a rename is a copy, "
                "and no longer done at once. Put it next to the checkpoint"
            )
        calls[name](source, target, **options)

    def removed(name: str, target: Any, **options: Any) -> None:
        if Path(target) == path:
            raise Wrong(
                "the old checkpoint was removed before the new one stood in its place: `os.replace` does both at once"
            )
        calls[name](target, **options)

    with contextlib.ExitStack() as stack:
        for name in calls:
            wrapped = moved if name in ("replace", "rename") else removed
            stack.enter_context(mock.patch.object(os, name, lambda *a, f=wrapped, n=name, **k: f(n, *a, **k)))
        yield


def _act(what: str) -> dict[str, Any]:
    _ran.append(what)
    return {}


class _Code:
    def __reduce__(self) -> Any:
        return _act, ("it ran",)


def judge_resume_training(answer: Callable[..., Any]) -> None:
    """`resume_training(path, model, optimizer, scaler, scheduler)` → the step; without AMP `scaler` is None."""
    with tempfile.TemporaryDirectory() as folder, torch.random.fork_rng(devices=[]):
        path = Path(folder) / "run.pt"
        for saved, now in ((True, True), (True, False), (False, True)):
            _resume(answer, path, saved, now)
        _check_bad_files(answer, path)


def _resume(answer: Callable[..., Any], path: Path, saved: bool, now: bool) -> None:
    """Train with or without AMP, save, resume with or without AMP, and go on."""
    generator = fresh()
    steps = 5 + int(torch.randint(3, (), generator=generator))  # in the middle of a streak of 4
    batches = drawn_batches(generator, steps + _AFTER)
    torch.manual_seed(drawn_seed())
    before = World(saved)
    before.train(batches[:steps])
    state = before.parts()
    torch.save({**state, "step": steps}, path)

    torch.manual_seed(drawn_seed())
    resumed = World(now, init_scale=2.0**9)
    fresh_scaler = resumed.parts()["scaler"]
    kind = f"{'AMP' if saved else 'fp32'} → {'AMP' if now else 'fp32'}"
    step = _called(answer, path, resumed, kind)
    if not resumed.model.training:
        raise Wrong("the model is in eval mode after the resume: leave the mode to the training")
    scaler = (state["scaler"] if saved else fresh_scaler) if now else None
    _check_parts(resumed, {**state, "scaler": scaler}, kind)
    if step is None:
        raise Wrong("your function returned None: return the step that the file holds, from which the training goes on")
    if integer(step, "the step") != steps:
        raise Wrong(f"the file says step {steps}, and you returned {step}")
    if saved != now:
        return
    resumed.train(batches[steps:])
    torch.set_rng_state(state["rng"])
    before.train(batches[steps:])
    if not equal(resumed.parts(), before.parts()):
        raise Wrong(
            "the states are right after loading, and the run that goes on is not the unbroken one, to the last bit"
        )


def _called(answer: Callable[..., Any], path: Path, world: World, kind: str) -> Any:
    try:
        return answer(path, world.model, world.optimizer, world.scaler, world.scheduler)
    except (AttributeError, TypeError, RuntimeError, KeyError) as error:
        if kind == "AMP → fp32" and "load_state_dict" in str(error):
            raise Wrong(
                "a run with AMP goes on in fp32 here, and `scaler` is None: there is nobody to load the scaler's state into"
            ) from error
        if kind == "fp32 → AMP":  # AMP → AMP went well before: it is the missing state that hurts
            raise Wrong(
                "a checkpoint of an fp32 run has None for the scaler's state, and your code raised "
                f"{type(error).__name__} on it: leave the new scaler at its beginning then"
            ) from error
        raise


_WHY = {
    "model": "`model.load_state_dict` restores weights and the running statistics of batch norm",
    "optimizer": "without `optimizer.load_state_dict` Adam's averages start from zero again",
    "scheduler": "without `scheduler.load_state_dict` the schedule starts over",
    "rng": "`torch.set_rng_state` comes last, after everything that could draw",
}


def _check_parts(world: World, want: dict[str, Any], kind: str) -> None:
    for part in differences(world.parts(), want):
        if part != "scaler":
            raise Wrong(f"after {kind}, the {part} is not as the file has it: {_WHY[part]}")
        if kind == "fp32 → AMP":
            raise Wrong("after fp32 → AMP the new scaler is not as it was made: the file has nothing to tell it")
        got = world.parts()["scaler"]
        lost = "scale" if got["scale"] != want["scaler"]["scale"] else "streak of clean steps"
        raise Wrong(
            f"after {kind} the scaler's {lost} is not as the file has it: `scaler.load_state_dict(checkpoint['scaler'])`"
        )


def _check_bad_files(answer: Callable[..., Any], path: Path) -> None:
    good = path.read_bytes()
    _ran.clear()
    torch.save({**World().parts(), "step": 3, "model": _Code()}, path)
    refused = _refuses(answer, path, World())
    if _ran:
        raise Wrong(
            "a file with code in it was loaded, and the code ran, with all that you may do on this machine. "
            "`torch.load(path, weights_only=True)` refuses it"
        )
    if not refused:
        raise Wrong(f"a file with code in it {_SILENT}")
    path.write_bytes(good[: len(good) // 2])
    if not _refuses(answer, path, World()):
        raise Wrong(f"a file of which half is missing {_SILENT}")
    path.write_bytes(good)
    other = World()
    other.model.append(nn.Linear(4, 4))
    if not _refuses(answer, path, other):
        raise Wrong(
            "the model has a layer that the file knows nothing of, and nobody was told: it keeps the weights it was "
            "drawn with. `strict=False` is for those who look at what it returns"
        )
    path.unlink()
    if not _refuses(answer, path, World()):
        raise Wrong(f"a file that is not there {_SILENT}")


_SILENT = (
    "was passed over in silence, and the training would start over under the old name: let the error through, or "
    "raise one of your own"
)


def _refuses(answer: Callable[..., Any], path: Path, world: World) -> bool:
    try:
        answer(path, world.model, world.optimizer, world.scaler, world.scheduler)
    except Exception:
        return True
    return False
