"""Exercise 6 of chapter 05: the learning rate scheduler steps only if the optimizer did."""

import math
import random
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from amp_course.checking import Card, Case, Exercise, Mistake, call_answer, families
from amp_course.scaler.exercises._shared import watch_steps

card = Card(
    chapter="scaler",
    name="scheduler_waits",
    number=6,
    title="The scheduler waits",
    difficulty=3,
    importance=4,
    minutes=8,
    lines=5,
    task="Write `scheduler_waits(loss, optimizer, scaler, scheduler)`, called after `backward()`: "
    "make the optimizer step, update the scaler, and then step the learning rate scheduler, but "
    "only if the optimizer really stepped. The loss is only for logging.",
    hints=(
        "The scaler does not report that it skipped. What does it do after a skip, and only then?",
        "Compare `scaler.get_scale()` before and after `update()`. It fell, stayed, or grew: which "
        "two of the three mean a step?",
        "`before = scaler.get_scale()`, step, update, then `if scaler.get_scale() >= before: "
        "scheduler.step()`.",
    ),
    why="A warm-up that counts skipped steps ends early: while the scaler looks for its scale, "
    "most steps may be skipped.",
    alternative="`optimizer.register_step_post_hook`: the hook runs only if that optimizer "
    "stepped, whatever others did.",
)


def right(loss: Any, optimizer: Any, scaler: Any, scheduler: Any) -> None:
    before = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    if scaler.get_scale() >= before:
        scheduler.step()


STEPS = (  # what is planted in the gradients, in which of them, and the loss
    ("", 0, 1.0),
    ("inf", 1, 1.0),
    ("", 0, math.nan),
    ("", 0, 1.0),
    ("1e30", 0, 1.0),
    ("NaN", 0, math.nan),
    ("-inf", 1, 1.0),
    ("", 0, 1.0),
    ("inf", 0, 1.0),
    ("", 0, -1.0),
    ("", 0, 1.0),
    ("NaN", 1, 1.0),
)


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """A warm-up from a learning rate of 0, with bad gradients; the scale grows every second
    step.
    """
    parameters = [nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2))]
    optimizer = torch.optim.SGD([{"params": one} for one in parameters], lr=0.1)
    scaler = torch.amp.GradScaler(
        "cpu", init_scale=2.0**14, growth_factor=4.0, backoff_factor=0.75, growth_interval=2
    )
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda steps: steps)
    used, rates = watch_steps(optimizer), list[float]()
    optimizer.register_step_post_hook(
        lambda *_: rates.append(float(optimizer.param_groups[0]["lr"]))
    )
    for number, (planted, place, value) in enumerate(STEPS, 1):
        kind = f"{planted} in the" if planted else "finite"
        case = f"at step {number}, with {kind} gradients and a loss of {value:g}"
        loss = torch.tensor(value, requires_grad=True) * torch.ones(())
        loss.backward()  # once; a second time must fail
        grads = [scaler.scale(torch.ones(p.shape)) for p in parameters]
        grads[place][1] *= float(planted or 1)
        for p, grad in zip(parameters, grads, strict=True):
            p.data, p.grad = torch.ones_like(p), grad
        if number == 8:
            scaler.update(0.75)  # the next scales are below 1
            parameters[0].data[0] = math.nan
            case += " and a NaN among the weights"
        used.clear()
        rates.clear()
        moved = scheduler._step_count
        # torch warns of a scheduler that steps first
        with warnings.catch_warnings(action="ignore"):
            call_answer(answer, case, loss, optimizer, scaler, scheduler)
        outputs = {
            "the number of optimizer steps": len(used),
            "the gradient at the step": list(used),
            "the learning rate at the step": rates[0] if rates else "unknown",
            "the number of scheduler steps": scheduler._step_count - moved,
            "the loss scale after the call": scaler.get_scale(),
        }
        finite = [bool(one.isfinite().all()) for one in used]
        yield Case(case, outputs, evidence={"finite": finite})


BEFORE = "before = scaler.get_scale()"
STEP = "scaler.step(optimizer)"
IF = "if scaler.get_scale() >= before:"
MOVE = "scheduler.step()"
GRADS = "grads = [p.grad for group in optimizer.param_groups for p in group['params']]"
WEIGHTS = "weights = [p.clone() for group in optimizer.param_groups for p in group['params']]"
ASK = "Ask the scaler: `update()` lowers the scale after a skip, and only then"


def moves_if(clean: str) -> dict[str, str]:
    """Move the scheduler if an expression was true before the step."""
    return {BEFORE: f"{GRADS}\nclean = {clean}", IF: "if clean:"}


mistakes = [
    Mistake(
        "always moves",
        "the scheduler moves after a skip. Check whether the scale is lower after `update()` than "
        "it was before",
        edits={BEFORE: "pass", IF: "if True:"},
        violates="only if the optimizer really stepped",
    ),
    Mistake(
        "takes growth for a skip",
        "the scheduler also waits after the scale grew. Only a fall of the scale means a skip, so "
        "test for `>=`",
        edits={IF: IF.replace(">=", "==")},
    ),
    Mistake(
        "moves only when the scale grows",
        "the scheduler moves only when the scale grew. The same scale also means a step, so "
        "compare with `>=`",
        edits={IF: IF.replace(">=", ">")},
    ),
    Mistake(
        "waits for a fall",
        "the scheduler moves when the scale fell, after a skip, and waits when it grew. Compare "
        "with `>=`",
        edits={IF: IF.replace(">=", "<=")},
    ),
    Mistake(
        "the wrong way round",
        "the scheduler moves after a skip and waits after a step. Turn the condition round: a "
        "scale that did not fall means a step",
        edits={IF: IF.replace(">=", "<")},
    ),
    Mistake(
        "looks for moved weights",
        "the scheduler waits when a step leaves the weights unchanged, as with the learning rate "
        "of 0 at the start",
        edits={
            BEFORE: WEIGHTS,
            IF: f"{WEIGHTS.replace('weights', 'now')}\nif not all(map(torch.equal, weights, now)):",
        },
    ),
    Mistake(
        "backward again",
        "`backward()` has run when your function is called. The gradients are there, and the loss "
        "is for logging",
        edits={BEFORE: f"scaler.scale(loss).backward()\n{BEFORE}"},
        violates="called after `backward()`",
    ),
    Mistake(
        "never moves",
        "the scheduler never moves. Step it unless `update()` lowers the scale: `scaler.step` "
        "always returns None",
        edits={BEFORE: "pass", STEP: f"stepped = {STEP}", IF: "if stepped is not None:"},
    ),
    Mistake(
        "looks at the loss",
        f"the scheduler moves if the loss is finite, but its scaled gradients may not be. {ASK}",
        edits=moves_if("loss.isfinite()"),
        violates="The loss is only for logging",
    ),
    Mistake(
        "misses NaN",
        f"the scheduler moves after a NaN, which makes the scaler skip as inf does. {ASK}",
        edits=moves_if("not any(g.isinf().any() for g in grads)"),
    ),
    Mistake(
        "misses inf",
        f"the scheduler moves after an inf, which makes the scaler skip as NaN does. {ASK}",
        edits=moves_if("not any(g.isnan().any() for g in grads)"),
    ),
    Mistake(
        "looks at the first gradient only",
        f"the scheduler missed a bad number that was not among the gradients you look at. {ASK}",
        edits=moves_if("grads[0].isfinite().all()"),
    ),
    Mistake(
        families.JUDGES_BY_THE_NORM[0],
        f"the scheduler waits although every gradient is finite, where only their norm is not. "
        f"{ASK}",
        edits=moves_if("torch.cat(grads).norm().isfinite()"),
    ),
    *[
        Mistake(
            name,
            "the scheduler moved before the optimizer, so this step ran with the learning rate of "
            "the next",
            edits=edits,
            violates="then step the learning rate scheduler",
        )
        for name, edits in {
            "moves first": {
                BEFORE: f"{GRADS}\nif all(g.isfinite().all() for g in grads):\n    {MOVE}",
                IF: "if False:",
            },
            "always moves, and first": {BEFORE: MOVE, IF: "if False:"},
            "moves first, and again at the end": {BEFORE: f"{MOVE}\n{BEFORE}"},
        }.items()
    ],
    Mistake(
        *families.STEPS_WHILE_SCALED,
        edits={
            BEFORE: "pass",
            STEP: "optimizer.step()",
            "scaler.update()": "pass",
            IF: "if True:",
        },
    ),
    Mistake(
        "hands the scheduler an argument",
        "the scheduler's count is off. `scheduler.step()` takes no argument here, and certainly "
        "not the loss",
        edits={MOVE: "scheduler.step(loss)"},
    ),
]

scheduler_waits = Exercise(card, right, cases, mistakes, tolerance=1e-5)
