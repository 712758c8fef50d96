"""Patient 2 of chapter 11: a training whose loss scale falls and falls."""

import itertools
import random
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from amp_course.checking import Card, Case, Exercise, Mistake
from amp_course.debugging.clinic.causes import cause
from amp_course.debugging.clinic.patients.never_cleared import train as patient
from amp_course.debugging.clinic.trials import (
    CAUSE,
    Recorded,
    describe_cause,
    read_losses,
    run_answer,
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


# The case in words, the loss scale at first, the batches whose forward pass overflows
CASES: tuple[tuple[str, float, tuple[int, ...]], ...] = (
    ("with an overflow in the second batch", 1024.0, (1,)),
    ("without an overflow, at a loss scale of 4", 4.0, ()),
    ("with a loss scale that is too large at first", 2.0**21, ()),
)


DTYPE = "the dtype that the first layer computes in"


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """Train through an overflow in the forward pass, at a small loss scale,
    and through overflows in the backward pass alone.
    """
    causes: list[str] = []
    generator = torch.Generator().manual_seed(draw.getrandbits(31))
    for case, scale, overflow in CASES:
        model = nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 4))
        for parameter in model.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.5
        batches = []
        for number in range(16 if scale > 2.0**16 else 5):
            inputs = torch.randn(6, 8, generator=generator)
            targets = torch.randint(0, 4, (6,), generator=generator)
            batches.append((inputs * 1e6 if number in overflow else inputs, targets))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        recorded = Recorded(model)
        got, named = run_answer(answer, case, model, list(batches), optimizer, scaler)
        causes.append(named)
        recorded.end()
        losses = read_losses(got, case, len(batches))
        dtypes = " and ".join(sorted(recorded.dtypes))
        if (
            scale > 2.0**16
        ):  # how many updates are skipped at first depends on how the loss is written
            moves = [
                not torch.equal(one, other) for one, other in itertools.pairwise(recorded.weights)
            ]
            yield Case(
                case,
                {DTYPE: dtypes, "whether the last three batches change the weights": moves[-3:]},
            )
            continue
        change = recorded.weights[-1] - recorded.weights[0]
        yield Case(
            case,
            {
                DTYPE: dtypes,
                "the loss scale at the end": scaler.get_scale(),
                "the change of the weights": change,
                "the losses": [
                    loss for number, loss in enumerate(losses) if number not in overflow
                ],
            },
            evidence={"change": change, "used": scaler.state_dict()["_growth_tracker"]},
        )
    yield Case("", {CAUSE: " and ".join(dict.fromkeys(causes))})  # once all else is right


LOSSES, REGION = "losses = []", 'with torch.autocast("cpu", dtype=torch.float16):'
CLEAR, BACKWARD = "optimizer.zero_grad()", "scaler.scale(loss).backward()"
STEP, UPDATE = "scaler.step(optimizer)", "scaler.update()"
IF_LOWER, IF_NOT = "if scaler.get_scale() < scale:", "if scaler.get_scale() >= scale:"
NOTE = f"scale = scaler.get_scale()\n{BACKWARD}"

mistakes = [
    Mistake(
        "unchanged",
        "nothing clears the gradients between batches. `backward()` adds to them, so the inf or "
        "NaN of one overflow stays in `.grad`, and all later updates are skipped: call "
        "`optimizer.zero_grad()` for each batch",
        answer=patient,
        violates="a `train` without the fault",
    ),
    Mistake(
        "clears before the step",
        "`scaler.step` finds no gradients: they are cleared between `backward()` and the step, or "
        "`backward()` does not run. Clear them before `backward()` or after the step, and run it "
        "for every batch",
        edits={CLEAR: "pass", BACKWARD: f"{BACKWARD}\n{CLEAR}"},
    ),
    Mistake(
        "clears only after real steps",
        "the gradients of a skipped step are not cleared, and the inf or NaN in them spoils those "
        "of all later batches: drop them after each batch, by `zero_grad()` (0 times inf is NaN)",
        edits={CLEAR: "pass", BACKWARD: NOTE, UPDATE: f"{UPDATE}\n{IF_NOT}\n    {CLEAR}"},
        violates="and the next batch trains as usual",
    ),
    Mistake(
        "clears only after skipped steps",
        "after a step that is not skipped, the gradients stay in `.grad`, and add to those of the "
        "next batch: clear all of them after each batch",
        edits={CLEAR: "pass", BACKWARD: NOTE, UPDATE: f"{UPDATE}\n{IF_LOWER}\n    {CLEAR}"},
    ),
    Mistake(
        "leaves the batch out",
        "a batch whose loss is not finite never reaches the scaler, which cannot lower the scale, "
        "and gradients still add up: leave the skipping to the scaler, and clear the gradients",
        edits={CLEAR: "if not loss.isfinite():\n    losses.append(loss.item())\n    continue"},
        violates="A batch that overflows is skipped by the scaler, which lowers the scale",
    ),
    Mistake(
        "leaves the batch out, and clears",
        "a batch whose loss is not finite never reaches the scaler, so it cannot lower the scale: "
        "leave the skipping to the scaler",
        edits={
            CLEAR: f"{CLEAR}\nif not loss.isfinite():\n    losses.append(loss.item())\n    continue"
        },
    ),
    Mistake(
        "steps without the scaler",
        "`optimizer.step()` also takes a step whose gradients are inf or NaN: call "
        "`scaler.step(optimizer)`, which skips it",
        edits={STEP: "scaler.unscale_(optimizer)\noptimizer.step()"},
    ),
    Mistake(
        "a scaler of its own",
        "the scale of the caller's scaler never changes: use the scaler that you are given, and "
        "make none",
        edits={LOSSES: f'scaler = torch.amp.GradScaler("cpu")\n{LOSSES}'},
        violates="by the optimizer and the scaler that you are given",
    ),
    Mistake(
        "an optimizer of its own",
        "the updates are not those of the caller's optimizer, with its momentum: use the one that "
        "you are given, and make none",
        edits={LOSSES: f"optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n{LOSSES}"},
    ),
    Mistake(
        "holds the scale up",
        "the scale does not fall, but the inf or NaN of a skipped step is still in `.grad`, and "
        "all later steps are skipped, too: clear the gradients",
        edits={CLEAR: "pass", UPDATE: "scaler.update(max(scaler.get_scale(), 1024.0))"},
    ),
    Mistake(
        "no scaler",
        "nothing skips an update that has overflowed, and the weights become NaN: scale the loss, "
        "and step with `scaler.step(optimizer)`",
        edits={BACKWARD: "loss.backward()", STEP: "optimizer.step()", UPDATE: "pass"},
    ),
    Mistake(
        "in fp32",
        "the forward pass runs in fp32 now, and the card asks for fp16: clear the gradients "
        "instead",
        edits={REGION: "if True:"},
        violates="fp16 autocast",
    ),
    Mistake(
        "in bf16",
        "the forward pass runs in bf16 now, and the card asks for fp16: clear the gradients "
        "instead",
        edits={REGION: REGION.replace("float16", "bfloat16")},
    ),
]

never_cleared = Exercise(
    card,
    right,
    cases,
    mistakes,
    tolerance=1e-2,
    messages=describe_cause(
        "In the patient, the overflow of step 41 leaves inf in `.grad`, and every later step finds "
        "it there."
    ),
)
