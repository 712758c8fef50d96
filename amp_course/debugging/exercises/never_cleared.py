"""Exercise 2 of chapter 11: a training run whose loss scale falls and falls."""

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from amp_course.checking import Card, Case, Exercise, Mistake, families
from amp_course.debugging.clinic.causes import cause
from amp_course.debugging.clinic.scripts.never_cleared import train as faulty
from amp_course.debugging.clinic.trials import (
    BACKWARD,
    CLEAR,
    DTYPE,
    IN_BF16,
    IN_FP32,
    NO_SCALER,
    OWN_SCALER,
    STEP,
    UPDATE,
    Recorded,
    Runner,
    describe_cause,
    draw_batches,
    draw_model,
    read_losses,
)

card = Card(
    chapter="debugging",
    name="never_cleared",
    number=2,
    title="The loss scale falls and falls",
    difficulty=2,
    importance=5,
    minutes=6,
    lines=11,
    task="Write `never_cleared(model, batches, optimizer, scaler)`, a `train` without the fault: "
    "fp16 autocast, one update per batch by the optimizer and the scaler that you are given. A "
    "batch that overflows is skipped by the scaler, which lowers the scale, and the next batch "
    "trains as usual. It returns the list of losses. Name the fault in its first line, by "
    "`cause(…)`.",
    hints=(
        "After an overflow the scaler skips the update and lowers the scale. What is in `.grad` "
        "when the next batch comes?",
        "`backward()` adds to `.grad`, and inf plus anything is inf or NaN, whatever the scale. "
        "The scaler finds it each time.",
        "`optimizer.zero_grad()` goes anywhere in the loop but between `backward()` and "
        "`scaler.step`; the cause is 'never-cleared'.",
    ),
    why="Before the first overflow the fault hardly shows: each `scaler.step` divides all of "
    "`.grad` by the scale, old gradients included, so they soon vanish.",
    alternative="`model.zero_grad()` at the end of each step, if the optimizer holds all "
    "parameters of the model.",
)


def right(model: Any, batches: Any, optimizer: Any, scaler: Any) -> list[float]:
    cause("never-cleared")
    losses = []
    for inputs, targets in batches:
        with torch.autocast("cpu", dtype=torch.float16):
            loss = cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses


USED = "the scaler that was passed in"


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """Train through an overflow in the forward pass, at a small loss scale, and through overflows
    in the backward pass alone.
    """
    run, generator = Runner(answer), torch.Generator().manual_seed(draw.getrandbits(31))
    for case, scale, count, overflow in (
        ("with an overflow in the second batch", 1024.0, 5, [2]),
        ("without an overflow, at a loss scale of 4", 4.0, 5, []),
        ("with a loss scale that is too large at first", 2.0**21, 16, []),
    ):
        model = draw_model(generator, 8, 12, 4, size=0.5)
        batches = draw_batches(generator, count, 6, 8, 4, overflow)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        with Recorded(model) as recorded:
            got = run(case, model, list(batches), optimizer, scaler)
        losses = read_losses(got, case, count, without=overflow)
        if scale > 2.0**16:  # how many steps are skipped depends on how the loss is written
            moves = [number in recorded.updated for number in range(count - 2, count + 1)]
            outputs: dict[str, Any] = {"whether the last three batches change the weights": moves}
            evidence = {}
        else:
            outputs = {
                "the loss scale at the end": scaler.get_scale(),
                "the change of the weights": recorded.change,
                "the losses": losses,
            }
            steps = scaler.state_dict()["_growth_tracker"]
            evidence = {"change": recorded.change, "steps": steps}
        used = "used" if scaler._scale is not None else "unused"
        yield Case(case, {DTYPE: recorded.dtype, USED: used, **outputs}, evidence=evidence)
    yield run.last_case()


LOSSES, KEEP_SCALE = "losses = []", f"scale = scaler.get_scale()\n{BACKWARD}"
LEAVE_OUT = "if not loss.isfinite():\n    losses.append(loss.item())\n    continue"

mistakes = [
    Mistake(
        "unchanged",
        "nothing clears the gradients between two batches, and `backward()` adds to them, so after "
        "one overflow inf or NaN stays in `.grad` and every later update is skipped. Call "
        "`optimizer.zero_grad()` for each batch",
        answer=faulty,
        violates="a `train` without the fault",
    ),
    Mistake(
        "clears before the step",
        "`scaler.step` finds no gradients: either they are cleared between `backward()` and the "
        "step, or `backward()` does not run. Run it for every batch, and clear before it or after "
        "the step",
        edits={CLEAR: "pass", BACKWARD: f"{BACKWARD}\n{CLEAR}"},
    ),
    Mistake(
        "zeros before the step",
        "every gradient is 0 at the step. Clear before `backward()` or after the step",
        edits={BACKWARD: f"{BACKWARD}\noptimizer.zero_grad(set_to_none=False)"},
    ),
    Mistake(
        "clears only after real steps",
        "inf or NaN from a skipped step reaches all later batches. Call `zero_grad()` after "
        "every batch",
        edits={
            CLEAR: "pass",
            BACKWARD: KEEP_SCALE,
            UPDATE: f"{UPDATE}\nif scaler.get_scale() >= scale:\n    {CLEAR}",
        },
        violates="and the next batch trains as usual",
    ),
    Mistake(
        "clears only after skipped steps",
        "after a step that is not skipped, the gradients are added to those of the next "
        "batch. Clear them after every batch",
        edits={
            CLEAR: "pass",
            BACKWARD: KEEP_SCALE,
            UPDATE: f"{UPDATE}\nif scaler.get_scale() < scale:\n    {CLEAR}",
        },
    ),
    Mistake(
        "leaves the batch out",
        "a batch whose loss is not finite never reaches the scaler, so the scale cannot fall, and "
        "gradients still add up. Let the scaler skip the batch, and clear the gradients",
        edits={CLEAR: LEAVE_OUT},
        violates="A batch that overflows is skipped by the scaler, which lowers the scale",
    ),
    Mistake(
        "leaves the batch out, and clears",
        "a batch whose loss is not finite never reaches the scaler. Let the scaler skip it",
        edits={CLEAR: f"{CLEAR}\n{LEAVE_OUT}"},
    ),
    Mistake(
        *families.STEPS_BY_HAND,
        edits={STEP: "scaler.unscale_(optimizer)\noptimizer.step()"},
    ),
    replace(OWN_SCALER, violates="by the optimizer and the scaler that you are given"),
    Mistake(
        "an optimizer of its own",
        "the updates are not those of the caller's optimizer with momentum. Use it",
        edits={LOSSES: f"optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n{LOSSES}"},
    ),
    Mistake(
        "holds the scale up",
        "the scale does not fall, but inf or NaN from a skipped step stays in `.grad`, so all "
        "later steps are skipped too. Clear the gradients",
        edits={CLEAR: "pass", UPDATE: "scaler.update(max(scaler.get_scale(), 1024.0))"},
    ),
    NO_SCALER,
    IN_FP32,
    IN_BF16,
]

never_cleared = Exercise(
    card,
    right,
    cases,
    mistakes,
    tolerance=1e-2,
    messages=describe_cause(
        "In the faulty script, the overflow of step 41 leaves inf in `.grad`, where every later "
        "step finds it."
    )
    | {USED: "the scaler that was passed in is not used. Scale the loss, step and update with it"},
)
