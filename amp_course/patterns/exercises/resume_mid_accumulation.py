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
    "these three of a new run and brings them to where the old ones were, to the last bit, "
    "gradients included, and returns the micro-step; the random state is the caller's. "
    "`torch.load(path, weights_only=True)` must accept the file.",
    hints=(
        "What is there in the middle of a group that is not there between two updates? No "
        "`state_dict()` holds it.",
        "Save `{name: p.grad for name, p in model.named_parameters()}` unchanged: scaled, and "
        "None where there is none.",
        "Load model, optimizer and scaler, whose scale the gradients carry; set each `p.grad`, "
        "and return the micro-step.",
    ),
    why="The gradients of a half-done group carry the scale of their scaler: you need both, or "
    "neither is worth anything.",
    alternative="save only between updates, and none of this is needed: that is what most "
    "trainers do.",
)


def pair() -> tuple[Any, Any]:
    """Make both functions."""

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
    """Stop after one update and a part of the next group; another run is saved, too.
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
            path, old, new = (
                Path(folder) / "run.pt",
                Run(draw, every=4),
                Run(draw, every=4, init_scale=2.0**11),
            )
            old.train(4)
            old.train(micro_step, overflow_at)
            before = old.snapshot()
            call_answer(save, f"when it saves {case}", path, *old.parts[:3], micro_step)
            after = old.snapshot()
            read_file(path)
            other = Run(draw, every=4)  # whose file is another one
            other.train(5)
            call_answer(
                save, f"when it saves {case}", Path(folder, "other.pt"), *other.parts[:3], 1
            )
            got = call_load(load, f"when it loads what was saved {case}", path, *new.parts[:3])
            loaded = new.snapshot()
            torch.set_rng_state(after["the random state"])
            outputs: dict[str, Any] = {"what the save changes": changed(before, after)}
            outputs |= {f"{name} after loading": loaded[name] for name in RESTORED}
            outputs["what the optimizer steps"] = new.stepped()
            outputs["the micro-step that you return"] = read_integer(
                got, case, subject="`load_midway` returned"
            )
            yield Case(case, outputs, evidence={"the run that was saved": after})


def wrong(edits: dict[str, str]) -> Any:
    """Make both functions, with lines edited."""
    return edited(pair, edits)()


LOOP, GRADIENT = "for name, p in model.named_parameters():", 'p.grad = state["gradients"][name]'


def after_loading(line: str) -> Any:
    """Make a pair whose second function does something with every gradient,
    and with those that are None nothing.
    """
    return wrong({GRADIENT: f"{GRADIENT}\nif p.grad is not None:\n    {line}"})


STATE, STEP, LOAD = (
    "state = {",
    '"micro_step": micro_step,',
    "state = torch.load(path, weights_only=True)",
)
STEPS = "scaler.step(optimizer), scaler.update(), optimizer.zero_grad()"

mistakes = [
    Mistake(
        "no gradients",
        "what was accumulated is lost, since no `state_dict()` holds it: save each `p.grad`, and "
        "on loading assign it (in a new model `p.grad` is None, so there is nothing to copy "
        "into), and do not clear it afterwards",
        answer=wrong({GRADIENT: "pass"}),
        violates="gradients included",
    ),
    Mistake(
        "unscales the run",
        "saving unscaled the gradients of the run, which goes on to add scaled ones: save them as "
        "they are",
        answer=wrong({STATE: f"scaler.unscale_(optimizer)\n{STATE}"}),
        violates="must not change the run",
    ),
    Mistake(
        "steps early",
        "saving made the run step in the middle of a group: save the gradients, and let the group "
        "go on",
        answer=wrong({STATE: f"if micro_step:\n    {STEPS}\n{STATE}"}),
    ),
    Mistake(
        "gradients unscaled in the file",
        "after loading, the gradients are divided by the scale, and the next are not: leave them "
        "as they are",
        answer=after_loading("p.grad /= scaler.get_scale()"),
        violates="to the last bit",
    ),
    Mistake(
        "gradients multiplied on loading",
        "loading multiplied the gradients by the scale, which they carry already: leave them as "
        "they are",
        answer=after_loading("p.grad *= scaler.get_scale()"),
    ),
    Mistake(
        "zeros for None",
        "a parameter without a gradient has zeros after loading, so momentum and weight decay "
        "move it: keep None",
        answer=wrong(
            {GRADIENT: f"{GRADIENT}\nif p.grad is None:\n    p.grad = torch.zeros_like(p)"}
        ),
    ),
    Mistake(
        "gradients on the wrong parameters",
        "gradients landed on other parameters than their own, as in a list without None: save "
        "them by name",
        answer=wrong(
            {
                LOOP: "there = [g for g in state['gradients'].values() if g is not None]\nfor p, "
                "g in zip(model.parameters(), there):",
                GRADIENT: "p.grad = g",
            }
        ),
    ),
    *(
        Mistake(
            f"no {part}",
            f"the {part} was not restored, {lost}: save its `state_dict()` and load it",
            answer=wrong({f'{part}.load_state_dict(state["{part}"])': ""}),
        )
        for part, lost in (
            ("scaler", "and its scale belongs to the gradients"),
            ("optimizer", "so its averages start from zero"),
            ("model", "and keeps its initial weights"),
        )
    ),
    Mistake(
        "starts the group over",
        "you return 0, so the group starts over on top of what was accumulated: return the saved "
        "micro-step",
        answer=wrong({STEP: '"micro_step": 0,'}),
        violates="returns the micro-step",
    ),
    Mistake(
        "whole objects",
        "`torch.load(path, weights_only=True)` refuses a whole optimizer: save "
        "`optimizer.state_dict()`",
        answer=wrong({STEP: f'{STEP} "whole": optimizer,', LOAD: LOAD.replace("True", "False")}),
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
        "the optimizer after loading": "after loading, the optimizer does not remember what the "
        "saved one did",
        "the modes of the layers after loading": "loading changed the mode of a layer: leave all "
        "modes to the training",
        "what the optimizer steps": "after loading, the optimizer no longer updates the model's "
        "parameters, so training moves nothing: copy into the parameters that are there",
    },
)
