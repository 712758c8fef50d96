"""Judge the loading of a training: three kinds of resume, and four files that must be refused."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from amp_course.checking import Wrong
from amp_course.checking.asking import integer
from amp_course.checking.values import fresh
from amp_course.checking.witness import drawn_seed
from amp_course.patterns.judges.small_trainings import World, differences, drawn_batches, equal

_AFTER = 4  # steps after the resume
_ran: list[str] = []  # what a pickle with code in it leaves behind


def _act(what: str) -> dict[str, Any]:
    _ran.append(what)
    return {}


class _Code:
    def __reduce__(self) -> Any:
        return _act, ("it ran",)


def judge(answer: Callable[..., Any]) -> None:
    """`resume_training(path, model, optimizer, scaler, scheduler)` → the step; without AMP `scaler` is None."""
    with tempfile.TemporaryDirectory() as folder, torch.random.fork_rng(devices=[]):
        path = Path(folder) / "run.pt"
        for saved, now in ((True, True), (True, False), (False, True)):
            _resume(answer, path, saved, now)
        _about_bad_files(answer, path)


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
    _about_parts(resumed, {**state, "scaler": scaler}, kind)
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
                "a run with AMP goes on in fp32 here, and `scaler` is None: there is nobody to load the scaler's "
                "state into"
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


def _about_parts(world: World, want: dict[str, Any], kind: str) -> None:
    for part in differences(world.parts(), want):
        if part != "scaler":
            raise Wrong(f"after {kind}, the {part} is not as the file has it: {_WHY[part]}")
        if kind == "fp32 → AMP":
            raise Wrong("after fp32 → AMP the new scaler is not as it was made: the file has nothing to tell it")
        got = world.parts()["scaler"]
        lost = "scale" if got["scale"] != want["scaler"]["scale"] else "streak of clean steps"
        raise Wrong(
            f"after {kind} the scaler's {lost} is not as the file has it: "
            "`scaler.load_state_dict(checkpoint['scaler'])`"
        )


def _about_bad_files(answer: Callable[..., Any], path: Path) -> None:
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
