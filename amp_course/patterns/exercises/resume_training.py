"""Exercise 5 of chapter 07: resume from a checkpoint, with or without AMP; refuse other files."""

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
    "None), or one in fp32 with AMP (the file's scaler is None). Each layer's mode stays as it is. "
    "A missing file raises an error. So does any other file, even one that lacks only `rng`, and "
    "no code in it runs. (Where `scaler` is None, you need not check the file's.)",
    hints=(
        "Four parts have a `load_state_dict`. For one of them there are two reasons not to call "
        "it.",
        "`torch.load(path, weights_only=True)` refuses files with code in them. Errors are for the "
        "caller, so catch none.",
        "`if scaler is not None and saved['scaler'] is not None: …`. Call "
        "`torch.set_rng_state(saved['rng'])` last.",
    ),
    why="A resume that skips what it cannot read trains on from another state, and nothing tells "
    "you.",
    alternative="catch what `torch.load` raises, and raise an error of your own from it with the "
    "file's name and the fix.",
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
        lacking = [(f"`{key}`", {k: whole[k] for k in KEYS if k != key}) for key in KEYS]
        for file, training, content in (
            ("a file with code in it", run, {**whole, "model": Code()}),
            *((f"a file without {key}", run, content) for key, content in lacking),
            ("the file of a model with fewer layers", larger, whole),
            ("the file of a model with more layers", run, {**larger.states(), "step": 3}),
            ("half a file", run, whole),
            ("a file that does not exist", run, None),
        ):
            torch.save(content, path)
            if "half" in file:
                path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
            if content is None:
                path.unlink()
            returned = "an error"
            with contextlib.suppress(Exception):
                step = answer(path, *training.parts)
                returned = "something else"
                returned = "the step" if read_integer(step) == 3 else returned
            where = "with a wrong step" if "`step`" in file else "from another state"
            ran = "code in the file" if Path(folder, "ran").exists() else "nothing"
            outputs = {"what is run": ran, "what comes back": returned}
            yield Case("", outputs, {"file": file, "where": where})


def swallow(errors: type[Exception], *training: Any) -> Any:
    """Resume, but return 0 if one of `errors` is raised."""
    try:
        return right(*training)
    except errors:
        return 0


LOAD = 'saved = torch.load(path, map_location="cpu", weights_only=True)'
MODEL = 'model.load_state_dict(saved["model"])'
IF = 'if scaler is not None and saved["scaler"] is not None:'
RNG, RETURN = 'torch.set_rng_state(saved["rng"])', 'return saved["step"]'
DEFAULTS = """now = [one and one.state_dict() for one in (model, optimizer, None, scheduler)]
saved = {**dict(zip(KEYS, [*now, torch.get_rng_state(), 0], strict=True)), **saved}"""

mistakes = [
    *(
        Mistake(
            f"{part} not loaded",
            f"the {part} was not loaded, so {effect}. Call `{part}.load_state_dict`",
            edits={f'{part}.load_state_dict(saved["{part}"])': "pass"},
            violates="load such a file into a new training",
        )
        for part, effect in (
            ("scaler", "the run skips steps to find its scale again"),
            ("model", "it keeps its initial weights"),
            ("optimizer", "Adam's averages start at 0 again"),
            ("scheduler", "its schedule starts over"),
        )
    ),
    Mistake(
        "random state not loaded",
        "the random state was not restored, so dropout draws other masks. Call "
        "`torch.set_rng_state` last",
        edits={RNG: ""},
    ),
    Mistake(
        "loads into no scaler",
        "a run with AMP goes on in fp32, where `scaler` is None. Test that before you load its "
        "state",
        edits={IF: 'if saved["scaler"] is not None:'},
        violates="A run with AMP may go on in fp32",
    ),
    Mistake(
        "loads no state",
        "the file of an fp32 run has None for the scaler, which cannot be loaded. Leave the new "
        "scaler as it is",
        edits={IF: "if scaler is not None:"},
        violates="one in fp32 with AMP",
    ),
    *(
        Mistake(
            f"{mode} mode",
            f"every layer is in {mode} mode after the resume. Leave the modes as they were",
            edits={RNG: f"{RNG}\nmodel.train({mode == 'training'})"},
            violates="Each layer's mode stays as it is",
        )
        for mode in ("eval", "training")
    ),
    Mistake(
        "other parameters",
        "the optimizer updates parameters that are not the model's. Copy into the model's "
        "parameters, without `assign=True`",
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
        "code in the file ran, with all your rights. `torch.load(path, weights_only=True)` refuses "
        "such a file",
        edits={LOAD: LOAD.replace("True", "False")},
        violates="no code in it runs",
    ),
    Mistake(
        "swallows every error",
        "your function raises no error, whatever the file, so the training would start over. Take "
        "out the `except` (or `suppress`) that swallows it",
        answer=partial(swallow, Exception),
    ),
    Mistake(
        "swallows what torch.load raises",
        "a file that `torch.load` refuses counts as a first start. Take out the `except` (or "
        "`suppress`) that swallows its error",
        edits={LOAD: f"try:\n    {LOAD}\nexcept Exception:\n    return 0"},
    ),
    Mistake(
        "swallows a missing file",
        "a missing file counts as a first start, but the path may have a typo. Let the error "
        "through",
        answer=partial(swallow, FileNotFoundError),
        violates="A missing file raises an error",
    ),
    Mistake(
        "skips what is missing",
        "what the file lacks was skipped. Read each part as in `saved['rng']`, which raises an "
        "error without it",
        edits={LOAD: f"{LOAD}\n{DEFAULTS}"},
        violates="even one that lacks only `rng`",
    ),
    Mistake(
        "no scaler is None",
        "a file without `scaler` was taken for one of an fp32 run. Read `saved['scaler']`, and let "
        "its error through",
        edits={IF: 'if scaler is not None and saved.get("scaler") is not None:'},
    ),
    Mistake(
        "takes another model",
        "the file of another model was accepted. Pass the file's own dict to "
        "`model.load_state_dict`, with `strict=True`",
        edits={MODEL: 'model.load_state_dict(saved["model"], strict=False)'},
    ),
]

resume_training = Exercise(
    card,
    right,
    cases,
    mistakes,
    messages={
        "the optimizer after the resume": "the optimizer's state is not `optimizer` in the file. "
        "Load that and do not change it afterwards, as `scheduler.step()` would",
        "the random state after the resume": "the random state is not `rng` in the file. Restore "
        "it last",
        "the modes of the layers after the resume": "the resume changed the mode of a layer. Leave "
        "all modes to the training",
        "what the optimizer steps": "the optimizer no longer updates the model's parameters, so "
        "training changes nothing",
        "what is run": "{file} was loaded, and the code ran",
        "what comes back": "no error was raised for {file}, and the training would go on {where}",
    },
)
