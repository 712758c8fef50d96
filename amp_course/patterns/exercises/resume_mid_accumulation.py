"""Exercise 6 of chapter 07: save and resume in the middle of an accumulation."""

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from amp_course.checking import (
    Card,
    Case,
    Exercise,
    Mistake,
    Wrong,
    call_answer,
    edited,
    is_blank,
    read_integer,
)
from amp_course.patterns.exercises.trainings import Run, call_load, changed, read_file

card = Card(
    chapter="patterns",
    name="resume_mid_accumulation",
    number=6,
    title="Stop between two micro-batches",
    difficulty=4,
    importance=3,
    minutes=15,
    lines=18,
    takes="value",
    task="Write the pair `resume_mid_accumulation = (save_midway, load_midway)` for a run that "
    "may stop in the middle of an accumulation. `save_midway(path, model, optimizer, scaler, "
    "micro_step)` must not change the run. `load_midway(path, model, optimizer, scaler)` gets "
    "these three of a new run, brings them to where the old ones were, to the last bit, gradients "
    "included, and returns the micro-step. The random state is the caller's. `torch.load(path, "
    "weights_only=True)` must accept the file.",
    hints=(
        "What exists in the middle of a group, but not between two updates? No `state_dict()` "
        "holds it.",
        "Save `{name: p.grad for name, p in model.named_parameters()}` unchanged: scaled, and None "
        "where there is none.",
        "Load model, optimizer and scaler, since its scale is in the gradients. Set each `p.grad`, "
        "and return the micro-step.",
    ),
    why="The gradients of a half-done group are scaled by their scaler, so neither is of use "
    "without the other.",
    alternative="save only between updates, as most trainers do. Then none of this is needed.",
)


def pair() -> tuple[Any, Any]:
    """Return both functions."""

    def save_midway(path: Any, model: Any, optimizer: Any, scaler: Any, micro_step: int) -> None:
        state = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scaler": scaler.state_dict(),
            "gradients": {name: p.grad for name, p in model.named_parameters()},
            "micro_step": micro_step,
        }
        torch.save(state, path)

    def load_midway(path: Any, model: Any, optimizer: Any, scaler: Any) -> Any:
        state = torch.load(path, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        scaler.load_state_dict(state["scaler"])
        for name, p in model.named_parameters():
            p.grad = state["gradients"][name]
        return state["micro_step"]

    return save_midway, load_midway


RESTORED = ("the model", "the scaler", "the optimizer", "the gradients", "the modes of the layers")


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """Stop after one update and part of the next group. Another run is saved in between.
    One layer has no gradients.
    """
    if not isinstance(answer, (tuple, list)) or len(answer) != 2 or not all(map(callable, answer)):
        raise Wrong("the check expects both functions as a pair, `(save_midway, load_midway)`")
    if any(map(is_blank, answer)):
        raise Wrong("one of the two functions is still to be written")
    save, load = answer
    with tempfile.TemporaryDirectory() as folder:
        for micro_step, overflow_at, case in (
            (2, -1, "after 2 of 4 micro-batches"),
            (3, 1, "after 3 of 4 micro-batches, of which one overflowed"),
            (0, -1, "between two groups"),
        ):
            path, saving = Path(folder, "run.pt"), f"when it saves {case}"
            old, other, new = (Run(draw, every=4, init_scale=2.0**n) for n in (7, 7, 11))
            old.train(4)
            old.train(micro_step, overflow_at)
            before = old.snapshot()
            call_answer(save, saving, path, *old.parts[:3], micro_step)
            after = old.snapshot()
            read_file(path)
            other.train(5)
            call_answer(save, saving, Path(folder, "other.pt"), *other.parts[:3], 1)
            got = call_load(load, f"when it loads what was saved {case}", path, *new.parts[:3])
            loaded = new.snapshot()
            torch.set_rng_state(after["the random state"])
            outputs = {
                "what the save changes": changed(before, after),
                **{f"{name} after loading": loaded[name] for name in RESTORED},
                "what the optimizer steps": new.stepped(),
                "the micro-step that you return": read_integer(
                    got, case, subject="`load_midway` returned"
                ),
            }
            yield Case(case, outputs, evidence={"the run that was saved": after})


STATE, STEP = "state = {", '"micro_step": micro_step,'
LOAD = "state = torch.load(path, weights_only=True)"
LOOP, GRADIENT = "for name, p in model.named_parameters():", 'p.grad = state["gradients"][name]'


def mistake(name: str, feedback: str, edits: dict[str, str], violates: str = "") -> Mistake:
    """Return a mistake whose answer is the pair with lines edited."""
    return Mistake(name, feedback, answer=edited(pair, edits)(), violates=violates)


mistakes = [
    mistake(
        "gradients not restored",
        "the accumulated gradients are lost, since no `state_dict()` holds them. Save each "
        "`p.grad`, assign it on loading (a new model's `p.grad` is None, so there is nothing to "
        "copy into), and do not clear it afterwards",
        {GRADIENT: "pass"},
        violates="gradients included",
    ),
    mistake(
        "unscales the run",
        "saving unscaled the gradients of the run, which goes on to add scaled ones. Save them as "
        "they are",
        {STATE: f"scaler.unscale_(optimizer)\n{STATE}"},
        violates="must not change the run",
    ),
    mistake(
        "steps early",
        "saving made the run step in the middle of a group. Save the gradients, and let the group "
        "go on",
        {
            STATE: "if micro_step:\n"
            f"    scaler.step(optimizer), scaler.update(), optimizer.zero_grad()\n{STATE}"
        },
    ),
    *(
        mistake(
            name,
            f"{effect}. Save and load the gradients as they are",
            {GRADIENT: f"{GRADIENT}\nif p.grad is not None:\n    p.grad {op} scaler.get_scale()"},
            violates="to the last bit",
        )
        for name, op, effect in (
            (
                "gradients unscaled in the file",
                "/=",
                "after loading, the gradients are divided by the scale, and the next are not",
            ),
            (
                "gradients multiplied on loading",
                "*=",
                "loading multiplied the gradients by the scale, which is already in them",
            ),
        )
    ),
    mistake(
        "zeros for None",
        "a parameter without a gradient has zeros after loading, so momentum and weight decay move "
        "it. Keep None",
        {GRADIENT: f"{GRADIENT}\nif p.grad is None:\n    p.grad = torch.zeros_like(p)"},
    ),
    mistake(
        "gradients on the wrong parameters",
        "gradients landed on other parameters than their own, as in a list without None. Save them "
        "by name",
        {
            LOOP: "there = [g for g in state['gradients'].values() if g is not None]\n"
            "for p, g in zip(model.parameters(), there):",
            GRADIENT: "p.grad = g",
        },
    ),
    *(
        mistake(
            f"{part} not restored",
            f"the {part} was not restored, so {effect}. Save its `state_dict()` and load it",
            {f'{part}.load_state_dict(state["{part}"])': ""},
        )
        for part, effect in (
            ("scaler", "its scale is not that of the gradients"),
            ("optimizer", "its averages start from zero"),
            ("model", "it keeps its initial weights"),
        )
    ),
    mistake(
        "starts the group over",
        "you return 0, so the group starts over on top of the accumulated gradients. Return the "
        "saved micro-step",
        {STEP: '"micro_step": 0,'},
        violates="returns the micro-step",
    ),
    mistake(
        "whole objects",
        "`torch.load(path, weights_only=True)` refuses a whole optimizer. Save "
        "`optimizer.state_dict()`",
        {STEP: f'{STEP} "whole": optimizer,', LOAD: LOAD.replace("True", "False")},
        violates="`torch.load(path, weights_only=True)` must accept the file",
    ),
]

resume_mid_accumulation = Exercise(
    card,
    pair(),
    cases,
    mistakes,
    messages={
        "what the save changes": "saving changed {got}, and a save should only read the run",
        "the optimizer after loading": "after loading, the optimizer's state is not the one that "
        "was saved",
        "the modes of the layers after loading": "loading changed the mode of a layer. Leave all "
        "modes to the training",
        "what the optimizer steps": "after loading, the optimizer no longer updates the model's "
        "parameters, so training changes nothing. Copy into the parameters that are there",
    },
)
