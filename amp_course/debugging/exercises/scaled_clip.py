"""Patient 1 of chapter 11: a training whose loss hardly moves."""

import copy
import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import vector_to_parameters

from amp_course.checking import Card, Case, Exercise, Mistake
from amp_course.debugging.clinic.causes import cause
from amp_course.debugging.clinic.patients.scaled_clip import train as patient
from amp_course.debugging.clinic.trials import (
    CAUSE,
    UNCLEARED,
    Recorded,
    describe_cause,
    fp32_gradient,
    read_losses,
    run_answer,
    sizes_of_updates,
)

card = Card(
    chapter="debugging",
    name="scaled_clip",
    number=1,
    title="The loss hardly moves",
    difficulty=2,
    importance=5,
    minutes=6,
    lines=14,
    task="Write `scaled_clip(model, batches)`, a `train` without the fault: SGD with lr=0.5, fp16 "
    "autocast, a `GradScaler`, gradients clipped to a norm of 1, one update per batch. It returns "
    "the list of losses. Name the fault in its first line, by `cause(…)`.",
    hints=(
        "At which moment of a step do the gradients have their true size? What is their norm "
        "where they are clipped?",
        "The scale is 65,536, so a gradient with a true norm of 0.5 has a norm of 32,768 there, "
        "and is cut to 1.",
        "`scaler.unscale_(optimizer)` goes right before `clip_grad_norm_`; the cause is "
        "'clipped-while-scaled'.",
    ),
    why="Nothing is raised and nothing is NaN. The only sign is a norm before clipping that is "
    "always as large as the scale.",
    alternative="clip the scaled gradients to `max_norm * scaler.get_scale()`, which reads the "
    "scale in each step.",
)


def right(model: Any, batches: Any) -> list[float]:
    cause("clipped-while-scaled")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scaler = torch.amp.GradScaler("cpu")
    losses = []
    for inputs, targets in batches:
        with torch.autocast("cpu", dtype=torch.float16):
            loss = cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses


LR, BATCHES, UPDATES = 0.5, 6, "the updates, compared with the right ones"


def make_case(
    size: str, generator: torch.Generator
) -> tuple[nn.Sequential, list[tuple[Tensor, Tensor]]]:
    """Draw a model and batches with gradients of a norm below 0.6 ("small"), or above 2, with
    elements up to 3.5 ("large").

    None is so large that a new scaler has to skip more than half of the batches before it has found
    its scale.
    """
    small, batches = size == "small", list[tuple[Tensor, Tensor]]()
    for attempt in itertools.count():
        if attempt % 50 == 0:  # not every model has such gradients
            last = nn.Linear(24, 2)
            model = nn.Sequential(nn.Linear(12, 24), nn.Tanh(), last)
            for parameter in model.parameters():
                parameter.data = torch.randn(parameter.shape, generator=generator) * 0.4
            last.weight.data *= 0.5 if small else 1.0
            batches.clear()
        inputs = torch.randn(6, 12, generator=generator) * (0.3 if small else 6.0)
        # as many of each class, whose gradients nearly cancel; or what the model finds least likely
        with torch.no_grad():
            targets = torch.arange(6) % 2 if small else model(inputs).argmin(dim=1)
            loss = float(cross_entropy(model(inputs), targets))
        gradient = fp32_gradient(model, cross_entropy, (inputs, targets))
        norm, largest = float(gradient.norm()), float(gradient.abs().max())
        turned = float(gradient.clamp(-1, 1).norm()) < 0.9 * norm  # by clipping each element
        if (
            0.1 < norm < 0.6 and loss < 0.9
            if small
            else norm > 2 and turned and largest < 3.5 and loss < 3.5
        ):
            batches.append((inputs, targets))
        if len(batches) == BATCHES:
            break
    return model, batches


def clipped_update(batches: Sequence[tuple[Tensor, Tensor]]) -> Callable[[nn.Module, int], Tensor]:
    """Return a function that takes a model and the number of a batch,
    and returns the right update.
    """

    def update(model: nn.Module, number: int) -> Tensor:
        gradient = fp32_gradient(model, cross_entropy, batches[number])
        return -LR * gradient / max(float(gradient.norm()), 1.0)

    return update


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """Train on gradients below the limit, on some above it, and through an overflow; judge each
    update on its own.

    A new scaler may have to skip some updates until it has found its scale; how many depends on how
    the loss is written.
    """
    causes: list[str] = []
    generator = torch.Generator().manual_seed(draw.getrandbits(31))
    for case, size, overflow in (
        ("with small gradients", "small", ()),
        ("with large gradients", "large", ()),
        ("with an overflow in the second batch", "small", (1,)),
    ):
        model, batches = make_case(size, generator)
        given = [(x * 1e6 if number in overflow else x, y) for number, (x, y) in enumerate(batches)]
        recorded = Recorded(model)
        got, named = run_answer(answer, case, model, list(given))
        causes.append(named)
        recorded.end()
        losses = read_losses(got, case, BATCHES)
        right_losses, updates, none, forwards = (
            list[Any](),
            list[Any](),
            0,
            len(recorded.weights) - 1,
        )
        if forwards == BATCHES:
            updates = sizes_of_updates(recorded.weights, clipped_update(batches), model)
            right_losses = losses_before(recorded.weights, batches, model)
        for number, one in enumerate(updates):
            if one == (0.0, 0.0) and number not in overflow and none < BATCHES // 2:
                none, updates[number] = none + 1, (1.0, 1.0)
            elif number in overflow:
                updates[number] = (1.0, 1.0) if one == (0.0, 0.0) else (math.nan, math.nan)
        wrong = next((number for number, one in enumerate(updates) if one != (1.0, 1.0)), 0)
        away = [
            number
            for number, loss in enumerate(right_losses)
            if number not in overflow
            and not math.isclose(losses[number], loss, rel_tol=0.02, abs_tol=0.005)
        ]
        yield Case(
            case,
            {
                "the number of forward passes": forwards,
                "the dtype that the first layer computes in": " and ".join(sorted(recorded.dtypes)),
                UPDATES: torch.tensor(updates),
                "the losses that differ from those of the batches": [
                    f"number {number + 1}" for number in away
                ],
            },
            {"number": wrong + 1, "seen": describe_update(updates[wrong]) if updates else ""},
        )
    yield Case("", {CAUSE: " and ".join(dict.fromkeys(causes))})  # once all else is right


def losses_before(
    weights: Sequence[Tensor], batches: Sequence[tuple[Tensor, Tensor]], model: nn.Module
) -> list[float]:
    """Return the loss of each batch in fp32, with the weights of before its update."""
    twin, losses = copy.deepcopy(model), []
    for before, (inputs, targets) in zip(weights[:-1], batches, strict=True):
        vector_to_parameters(before.clone(), twin.parameters())
        with torch.no_grad():
            losses.append(float(cross_entropy(twin(inputs), targets)))
    return losses


def describe_update(size: tuple[float, float]) -> str:
    """Say how an update compares with the right one: (0.0, 0.0) → "there is none"."""
    along, length = size
    if length == 0:
        return "there is none"
    if not math.isfinite(length):
        return "the weights become inf or NaN, or move although the batch overflows"
    if along < 0.98 * length:
        return f"it goes in another direction, and is {length:.3g} times as long as the right one"
    return f"it is {length:.3g} times as long as the right one"


OPTIMIZER, SCALER = (
    "optimizer = torch.optim.SGD(model.parameters(), lr=0.5)",
    'scaler = torch.amp.GradScaler("cpu")',
)
REGION, CLEAR = 'with torch.autocast("cpu", dtype=torch.float16):', "optimizer.zero_grad()"
BACKWARD, UNSCALE, STEP = (
    "scaler.scale(loss).backward()",
    "scaler.unscale_(optimizer)",
    "scaler.step(optimizer)",
)
CLIP, UPDATE = "nn.utils.clip_grad_norm_(model.parameters(), 1.0)", "scaler.update()"
SCALED = (
    "gradients are clipped while they carry the loss scale, so what is left after unscaling has a "
    "norm of 1 / 65,536: unscale them first"
)

mistakes = [
    Mistake("unchanged", SCALED, answer=patient, violates="a `train` without the fault"),
    Mistake(
        "the limit of one scale",
        "gradients are clipped to 65,536 while they carry the loss scale, which is a norm of 1 "
        "only as long as the scale is 65,536: unscale them first",
        edits={UNSCALE: "pass", CLIP: CLIP.replace("1.0", "65536.0")},
    ),
    Mistake(
        "no clipping",
        "large gradients are not clipped when the update is made. Clipping was right; it was only "
        "in the wrong place",
        edits={CLIP: "pass"},
        violates="gradients clipped to a norm of 1",
    ),
    Mistake(
        "always to a norm of 1",
        "every gradient is brought to a norm of 1, and smaller ones grow: clipping leaves them as "
        "they are",
        edits={
            CLIP: "norm = nn.utils.get_total_norm([p.grad for p in "
            "model.parameters()])\n[p.grad.div_(norm) for p in model.parameters()]"
        },
    ),
    Mistake(
        "clips each parameter",
        "each parameter is clipped by its own norm: pass all of them in one call",
        edits={CLIP: "[nn.utils.clip_grad_norm_([p], 1.0) for p in model.parameters()]"},
    ),
    Mistake(
        "clips values",
        "each number is cut off at 1, which turns the gradient: scale all of them down by one norm",
        edits={CLIP: CLIP.replace("norm_", "value_")},
    ),
    Mistake(
        "no scaler",
        "nothing skips an update that has overflowed, as a scaler does: scale the loss, and step "
        "with `scaler.step(optimizer)`",
        edits={
            BACKWARD: "loss.backward()",
            UNSCALE: "pass",
            STEP: "optimizer.step()",
            UPDATE: "pass",
        },
        violates="a `GradScaler`",
    ),
    Mistake(
        "steps without the scaler",
        "`optimizer.step()` also takes a step whose gradients are inf or NaN: call "
        "`scaler.step(optimizer)`, which skips it",
        edits={STEP: "optimizer.step()"},
    ),
    Mistake(
        "no update",
        "`scaler.update()` is missing: call it after each `scaler.step`",
        edits={UPDATE: "pass"},
    ),
    Mistake(
        "in fp32",
        "the forward pass runs in fp32 now, which hides the fault: the order of the calls was "
        "wrong, not the dtype",
        edits={REGION: "if True:"},
        violates="fp16 autocast",
    ),
    Mistake(
        "in bf16",
        "the forward pass runs in bf16 now, and the card asks for fp16: only the order of the "
        "calls was wrong",
        edits={REGION: REGION.replace("float16", "bfloat16")},
    ),
    Mistake(
        "a higher rate",
        "a higher learning rate makes up for the clipping only by chance: the gradients are still "
        "clipped to 1 / 65,536 of their size",
        edits={UNSCALE: "pass", OPTIMIZER: OPTIMIZER.replace("0.5", "500.0")},
        violates="SGD with lr=0.5",
    ),
    Mistake("never clears", UNCLEARED, edits={CLEAR: "pass"}),
    Mistake(
        "clears before the step",
        "the gradients are 0 when the step is taken, so nothing is learned: clear them before "
        "`backward()` or after the step",
        edits={UNSCALE: f"{UNSCALE}\noptimizer.zero_grad(set_to_none=False)", CLEAR: "pass"},
    ),
]

scaled_clip = Exercise(
    card,
    right,
    cases,
    mistakes,
    tolerance=0.05,
    messages=describe_cause(
        "In the patient, the norm that `clip_grad_norm_` returned was about 65,536 times that of "
        "the gradients."
    )
    | {UPDATES: "{case}, an update of the weights is wrong: for batch {number}, {seen}"},
)
