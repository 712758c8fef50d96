"""Exercise 6 of chapter 05: the learning rate scheduler steps only if the optimizer did."""

import math
import random
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from amp_course.checking import Card, Case, Exercise, Mistake, call_answer
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
        "The scaler does not say that it skipped. What does it do after a skip, and after nothing "
        "else?",
        "`scaler.get_scale()` before and after `update()`: it fell, stayed, or grew. Which two of "
        "the three mean a step?",
        "`before = scaler.get_scale()`, step, update, then `if scaler.get_scale() >= before: "
        "scheduler.step()`.",
    ),
    why="A warm-up that counts skipped steps ends early: while the scale is being found, most "
    "steps may be skipped.",
    alternative="`optimizer.register_step_post_hook`: the hook runs only if that optimizer "
    "stepped, whatever others did.",
)


def right(loss: Any, optimizer: Any, scaler: Any, scheduler: Any) -> None:
    before = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    if scaler.get_scale() >= before:
        scheduler.step()


OK, LARGE = (
    ("", 0, 1.0),
    ("1e30", 0, 1.0),
)  # what is planted in the gradients, in which of them, and the loss
TURNS = (
    OK,
    ("inf", 1, 1.0),
    ("", 0, math.nan),
    OK,
    LARGE,
    ("NaN", 0, math.nan),
    ("-inf", 1, 1.0),
    OK,
    ("inf", 0, 1.0),
    ("", 0, -1.0),
    OK,
    ("NaN", 1, 1.0),
)


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """A warm-up from a learning rate of 0, with every kind of bad gradient;
    the scale grows after two clean steps.
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
    for number, (planted, place, value) in enumerate(TURNS, 1):
        kind = f"{planted} in the" if planted else "finite"
        case = f"at step {number}, with {kind} gradients and a loss of {value:g}"
        loss = torch.tensor(value, requires_grad=True) * torch.ones(())
        loss.backward()  # once; a second time must fail
        grads = [scaler.scale(torch.ones(p.shape)) for p in parameters]
        grads[place][1] *= float(planted or 1)
        for parameter, gradient in zip(parameters, grads, strict=True):
            parameter.data, parameter.grad = torch.ones_like(parameter), gradient
        if number == 8:
            scaler.update(0.75)  # the next scales are below 1
            parameters[0].data[0], case = math.nan, f"{case} and a NaN among the weights"
        del used[:], rates[:]
        moved = scheduler._step_count
        with warnings.catch_warnings(
            action="ignore"
        ):  # torch's own, on a scheduler that steps first
            call_answer(answer, case, loss, optimizer, scaler, scheduler)
        evidence = {"finite": [bool(one.isfinite().all()) for one in used]}
        yield Case(
            case,
            {
                "the number of optimizer steps": len(used),
                "the gradient at the step": list(used),
                "the learning rate at the step": rates[0] if rates else "unknown",
                "the number of scheduler steps": scheduler._step_count - moved,
                "the loss scale after the call": scaler.get_scale(),
            },
            {},
            evidence,
        )


BEFORE, STEP, UPDATE = "before = scaler.get_scale()", "scaler.step(optimizer)", "scaler.update()"
IF, MOVE = "if scaler.get_scale() >= before:", "scheduler.step()"
GRADS = "grads = [p.grad for group in optimizer.param_groups for p in group['params']]"
CLEAN = f"{GRADS}\nclean = all(g.isfinite().all() for g in grads)"
WEIGHTS = "weights = [p.clone() for group in optimizer.param_groups for p in group['params']]"
IF_MOVED = f"{WEIGHTS.replace('weights', 'now')}\nif not all(map(torch.equal, weights, now)):"
_ASK = "Ask the scaler: `update()` lowers the scale after a skip, and only then"


def _moves_if(clean: str) -> dict[str, str]:
    """Edit the right code to move the scheduler if an expression was true before the step."""
    return {BEFORE: f"{GRADS}\nclean = {clean}", IF: "if clean:"}


mistakes = [
    Mistake(
        "always",
        "the scheduler moves on after a skip: see whether the scale is lower after `update()` "
        "than it was before",
        edits={BEFORE: "pass", IF: "if True:"},
        violates="only if the optimizer really stepped",
    ),
    Mistake(
        "takes growth for a skip",
        "the scheduler also waits after the scale grew. Only a fall of the scale means a skip: "
        "test for `>=`",
        edits={IF: "if scaler.get_scale() == before:"},
    ),
    Mistake(
        "moves only when the scale grows",
        "the scheduler moves only when the scale grew. The same scale also means a step: compare "
        "with `>=`",
        edits={IF: "if scaler.get_scale() > before:"},
    ),
    Mistake(
        "also moves after a fall",
        "the scheduler moves when the scale fell, after a skip, and waits when it grew: compare "
        "with `>=`",
        edits={IF: "if scaler.get_scale() <= before:"},
    ),
    Mistake(
        "looks for moved weights",
        "the scheduler waits when a step leaves the weights unchanged, as with the learning rate "
        "of 0 at the start",
        edits={BEFORE: WEIGHTS, IF: IF_MOVED},
    ),
    Mistake(
        "backward again",
        "`backward()` has run when your function is called: the gradients are there, the loss is "
        "for logging",
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
        f"the scheduler moves if the loss is finite, but its scaled gradients may not be. {_ASK}",
        edits=_moves_if("loss.isfinite()"),
        violates="The loss is only for logging",
    ),
    Mistake(
        "misses NaN",
        f"the scheduler moves after a NaN. It is not inf, but it makes the scaler skip, too. "
        f"{_ASK}",
        edits=_moves_if("not any(g.isinf().any() for g in grads)"),
    ),
    Mistake(
        "misses inf",
        f"the scheduler moves after an inf. It is not NaN, but it makes the scaler skip, too. "
        f"{_ASK}",
        edits=_moves_if("not any(g.isnan().any() for g in grads)"),
    ),
    Mistake(
        "looks at the first gradient only",
        f"the scheduler missed a bad number that was not among the gradients you look at. {_ASK}",
        edits=_moves_if("grads[0].isfinite().all()"),
    ),
    *[
        Mistake(
            name,
            "the scheduler moved before the optimizer, so this step ran with the learning rate of "
            "the next",
            edits={BEFORE: before, IF: "if False:"},
            violates="then step the learning rate scheduler",
        )
        for name, before in (
            ("first", f"{CLEAN}\nif clean:\n    {MOVE}"),
            ("first and always", MOVE),
        )
    ],
    Mistake(
        "steps by hand",
        "`optimizer.step()` was called directly: leave it to `scaler.step`, which unscales, and "
        "skips inf and NaN",
        edits={BEFORE: "pass", STEP: "optimizer.step()", UPDATE: "pass", IF: "if True:"},
    ),
    Mistake(
        "hands the scheduler an argument",
        "the scheduler's count is off: `scheduler.step()` takes no argument here, and certainly "
        "not the loss",
        edits={MOVE: "scheduler.step(loss)"},
    ),
]

scheduler_waits = Exercise(card, right, cases, mistakes, tolerance=1e-5)
