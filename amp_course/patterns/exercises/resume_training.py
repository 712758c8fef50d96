"""Exercise 5 of chapter 07: go on from a checkpoint, with or without AMP,
and refuse what is none.
"""

import contextlib
import os
import random
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from amp_course.checking import Card, Case, Exercise, Mistake, read_integer
from amp_course.patterns.exercises.trainings import KEYS, Run, call_load

card = Card(
    chapter="patterns",
    name="resume_training",
    number=5,
    title="Resume, with and without AMP",
    difficulty=2,
    importance=5,
    minutes=10,
    lines=9,
    task="Write `resume_training(path, model, optimizer, scaler, scheduler)`: load such a file "
    "into a new training, and return the step. A run with AMP may go on in fp32 (`scaler` is "
    "None), or one in fp32 with AMP (the file's scaler is None). Each layer's mode stays as it "
    "is. A missing file raises an error. Any other file, even one that lacks only `rng`, does so "
    "too, and no code in it runs (where `scaler` is None, you need not look for the file's).",
    hints=(
        "Four parts have a `load_state_dict`. For one of them there are two reasons not to call "
        "it.",
        "`torch.load(path, weights_only=True)` refuses files with code in them. Errors are for "
        "the caller: catch none.",
        "`if scaler is not None and saved['scaler'] is not None: …`. Last comes "
        "`torch.set_rng_state(saved['rng'])`.",
    ),
    why="A resume that skips what it cannot read trains on from somewhere else, and nothing tells "
    "you.",
    alternative="catch what `torch.load` raises and raise an error of your own from it, with the "
    "file's name and the cure.",
)


def right(path: Any, model: Any, optimizer: Any, scaler: Any, scheduler: Any) -> Any:
    saved = torch.load(path, map_location="cpu", weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    scheduler.load_state_dict(saved["scheduler"])
    if scaler is not None and saved["scaler"] is not None:
        scaler.load_state_dict(saved["scaler"])
    torch.set_rng_state(saved["rng"])
    return saved["step"]


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """Resume with and without AMP; then from files that are no checkpoints of this training."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.pt"
        for before, now, case in (
            (True, True, "when a run with AMP goes on with AMP"),
            (True, False, "when a run with AMP goes on in fp32"),
            (False, True, "when a run in fp32 goes on with AMP"),
            (False, False, "when a run in fp32 goes on in fp32"),
        ):
            old = Run(draw, amp=before)
            old.train(3)
            torch.save({**old.states(), "step": 3}, path)
            new = Run(draw, amp=now, init_scale=2.0**9)
            new.model[1].eval()  # a frozen batch norm
            step = call_load(answer, case, path, *new.parts)
            outputs = {f"{name} after the resume": value for name, value in new.snapshot().items()}
            outputs["what the optimizer steps"] = new.stepped()
            yield Case(case, {**outputs, "the step that you return": read_integer(step, case)})

        class Code:
            def __reduce__(self) -> Any:
                return os.mkdir, (f"{folder}/ran",)  # which loading runs

        run, larger = Run(draw), Run(draw)
        larger.model.more = nn.Linear(4, 4)
        whole = {**run.states(), "step": 3}
        for case, training, content in (
            ("a file with code in it", run, {**whole, "model": Code()}),
            *(
                (f"a file without `{key}`", run, {k: whole[k] for k in KEYS if k != key})
                for key in KEYS
            ),
            ("the file of a model with fewer layers", larger, whole),
            ("the file of a model with more layers", run, {**larger.states(), "step": 3}),
            ("half a file", run, whole),
            ("a file that does not exist", run, None),
        ):
            torch.save(content, path)
            if "half" in case:
                path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
            if content is None:
                path.unlink()
            back = "an error"
            with contextlib.suppress(Exception):
                step = answer(path, *training.parts)
                back = "something else"
                back = "the step" if read_integer(step) == 3 else back
            where = "with a wrong step" if "`step`" in case else "from somewhere else"
            ran = "code in the file" if Path(folder, "ran").exists() else "nothing"
            yield Case(
                "", {"what is run": ran, "what comes back": back}, {"file": case, "where": where}
            )


def swallowed(errors: type[Exception], *training: Any) -> Any:
    try:
        return right(*training)
    except errors:
        return 0


LOAD = 'saved = torch.load(path, map_location="cpu", weights_only=True)'
MODEL, OPTIMIZER = (
    'model.load_state_dict(saved["model"])',
    'optimizer.load_state_dict(saved["optimizer"])',
)
OWN = "now = [one and one.state_dict() for one in (model, optimizer, None, scheduler)]\n"
OWN += "saved = {**dict(zip(KEYS, [*now, torch.get_rng_state(), 0], strict=True)), **saved}"
IF, SCALER = (
    'if scaler is not None and saved["scaler"] is not None:',
    'scaler.load_state_dict(saved["scaler"])',
)
RNG, RETURN = 'torch.set_rng_state(saved["rng"])', 'return saved["step"]'

mistakes = [
    Mistake(
        "scaler not loaded",
        "the scaler was not loaded, so the run skips steps to find its scale again: call its "
        "`load_state_dict`",
        edits={SCALER: "pass"},
    ),
    Mistake(
        "loads into no scaler",
        "a run with AMP goes on in fp32, where `scaler` is None: test that before you load its "
        "state",
        edits={IF: 'if saved["scaler"] is not None:'},
        violates="A run with AMP may go on in fp32",
    ),
    Mistake(
        "loads no state",
        "the file of an fp32 run has None for the scaler, which cannot be loaded: leave the new "
        "scaler as it is",
        edits={IF: "if scaler is not None:"},
        violates="one in fp32 with AMP",
    ),
    Mistake(
        "model not loaded",
        "the model was not loaded, and keeps its initial weights: call `model.load_state_dict`",
        edits={MODEL: ""},
    ),
    Mistake(
        "optimizer not loaded",
        "the optimizer was not loaded, so Adam's averages start at 0 again: call "
        "`optimizer.load_state_dict`",
        edits={OPTIMIZER: ""},
        violates="load such a file into a new training",
    ),
    Mistake(
        "scheduler not loaded",
        "the scheduler was not loaded, and its schedule starts over: call "
        "`scheduler.load_state_dict`",
        edits={'scheduler.load_state_dict(saved["scheduler"])': ""},
    ),
    Mistake(
        "random state not loaded",
        "the random state was not restored, so dropout draws other masks: end with "
        "`torch.set_rng_state`",
        edits={RNG: ""},
    ),
    *(
        Mistake(
            f"{mode} mode",
            f"every layer is in {mode} mode after the resume, whatever it was in before: leave "
            f"the modes as they are",
            edits={RNG: f"{RNG}\nmodel.{method}()"},
            violates="Each layer's mode stays as it is",
        )
        for mode, method in (("eval", "eval"), ("training", "train"))
    ),
    Mistake(
        "other parameters",
        "the optimizer updates parameters that are not the model's: copy into those, without "
        "`assign=True`",
        edits={MODEL: 'model.load_state_dict(saved["model"], assign=True)'},
    ),
    Mistake(
        "next step",
        "you return one more than the step in the file",
        edits={RETURN: f"{RETURN} + 1"},
        violates="return the step",
    ),
    Mistake(
        "runs code",
        "code in the file ran, with all your rights: `torch.load(path, weights_only=True)` "
        "refuses such a file",
        edits={LOAD: LOAD.replace("True", "False")},
        violates="no code in it runs",
    ),
    Mistake(
        "swallows every error",
        "no error leaves your function, whatever the file, so the training would start over: let "
        "the error through",
        answer=partial(swallowed, Exception),
    ),
    Mistake(
        "swallows a missing file",
        "a missing file is taken for a first start, and it may be a typo in the path: let the "
        "error through",
        answer=partial(swallowed, FileNotFoundError),
    ),
    Mistake(
        "skips what is missing",
        "what the file lacks was skipped: read each part as `saved['rng']`, which raises an error "
        "without it",
        edits={LOAD: f"{LOAD}\n{OWN}"},
        violates="Any other file, even one that lacks only `rng`",
    ),
    Mistake(
        "no scaler is None",
        "a file without `scaler` was taken for an fp32 run's: read `saved['scaler']`, and let its "
        "error through",
        edits={IF: 'if scaler is not None and saved.get("scaler") is not None:'},
    ),
    Mistake(
        "takes another model",
        "the file of another model was taken: give `model.load_state_dict` the file's own dict, "
        "with `strict=True`",
        edits={MODEL: 'model.load_state_dict(saved["model"], strict=False)'},
    ),
]

resume_training = Exercise(
    card,
    right,
    cases,
    mistakes,
    messages={
        "the optimizer after the resume": "the optimizer does not have what the file has under "
        "`optimizer`: load that, and change nothing in it afterwards, as `scheduler.step()` would",
        "the random state after the resume": "the random state is not `rng` in the file: restore "
        "that last of all",
        "the modes of the layers after the resume": "the resume changed the mode of a layer: "
        "leave all modes to the training",
        "what the optimizer steps": "the optimizer no longer updates the model's parameters, so "
        "training moves nothing",
        "what is run": "{file} was loaded, and the code ran",
        "what comes back": "no error was raised for {file}, and the training would go on {where}",
    },
)
