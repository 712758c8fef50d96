"""Exercise 1 of chapter 11: a training run whose loss hardly moves."""

import copy
import functools
import itertools
import math
import random
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from amp_course.checking import Card, Case, Exercise, Mistake, families
from amp_course.debugging.clinic.causes import cause
from amp_course.debugging.clinic.scripts.scaled_clip import train as faulty
from amp_course.debugging.clinic.trials import (
    CLEAR,
    DTYPE,
    IN_BF16,
    IN_FP32,
    NEVER_CLEARS,
    NO_SCALER,
    NO_UPDATE,
    STEP,
    Recorded,
    Runner,
    describe_cause,
    draw_model,
    fp32_gradient,
    read_losses,
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
    "the list of losses. Name the fault in its first line, with `cause(…)`.",
    hints=(
        "At which moment of a step do the gradients have their true size? What is their norm "
        "where they are clipped?",
        "The scale is 65,536, so a gradient with a true norm of 0.5 has a norm of 32,768 there, "
        "and is clipped to 1.",
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


BATCHES, UPDATES = 6, "the updates, compared with the right ones"


@functools.lru_cache(3)  # drawing takes longer than training
def draw_training(large: bool, seed: int) -> tuple[nn.Sequential, list[tuple[Tensor, Tensor]]]:
    """Draw a model and batches with gradients of a norm below 0.6, or `large` ones: above 2, with
    elements up to 3.5, so that a new scaler finds its scale within half of the batches.
    """
    generator = torch.Generator().manual_seed(seed)
    for attempt in itertools.count():
        if attempt % 50 == 0:  # not every model has such gradients
            model, batches = draw_model(generator, 12, 24, 2), list[tuple[Tensor, Tensor]]()
            model[2].get_parameter("weight").data *= 1.0 if large else 0.5
        inputs = torch.randn(6, 12, generator=generator) * (6.0 if large else 0.3)
        # The least likely class gives large gradients; those of equal classes nearly cancel
        targets = model(inputs).argmin(dim=1) if large else torch.arange(6) % 2
        loss = cross_entropy(model(inputs), targets)
        gradient = fp32_gradient(model, cross_entropy, (inputs, targets))
        norm, clipped = gradient.norm(), gradient.clamp(-1, 1).norm()
        if (
            norm > 2 and clipped < 0.9 * norm and gradient.abs().max() < 3.5 and loss < 3.5
            if large
            else 0.1 < norm < 0.6 and loss < 0.9
        ):
            batches.append((inputs, targets))
        if len(batches) == BATCHES:
            break
    return model, batches


def describe_update(along: float, length: float) -> str:
    """Compare an update with the right one: (0.0, 0.0) → "there is none"."""
    if length == 0:
        return "there is none"
    if not math.isfinite(length):
        return "the weights become inf or NaN, or change although the batch overflows"
    turned = "points in another direction and " if along < 0.98 * length else ""
    return f"it {turned}is {length:.3g} times as long as the right one"


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """Train on gradients below the limit, above it, and through an overflow.

    Each update is judged on its own. Up to half of them may be skipped while the scaler finds its
    scale: how many depends on how the loss is written.
    """
    run = Runner(answer)
    for case, large, overflow in (
        ("with small gradients", False, None),
        ("with large gradients", True, None),
        ("with an overflow in the second batch", False, 1),
    ):
        model, batches = copy.deepcopy(draw_training(large, draw.getrandbits(31)))
        given = [(x * 1e6 if number == overflow else x, y) for number, (x, y) in enumerate(batches)]
        right_losses: list[float] = []

        def right_update(
            model: nn.Module, number: int, batches: Any = batches, losses: Any = right_losses
        ) -> Tensor:
            inputs, targets = batches[number]
            losses.append(cross_entropy(model(inputs), targets).item())
            gradient = fp32_gradient(model, cross_entropy, batches[number])
            return -0.5 * gradient / gradient.norm().clamp(min=1.0)

        with Recorded(model) as recorded:
            got = run(case, model, given)
        losses = read_losses(got, case, BATCHES)
        updates: list[tuple[float, float]] = []
        if recorded.passes == BATCHES:
            updates = sizes_of_updates(recorded.weights, right_update, model)
        skipped = 0
        for number, update in enumerate(updates):
            if number == overflow:
                updates[number] = (1.0, 1.0) if update == (0.0, 0.0) else (math.nan, math.nan)
            elif update == (0.0, 0.0) and skipped < BATCHES // 2:
                skipped, updates[number] = skipped + 1, (1.0, 1.0)
        wrong = next((number for number, one in enumerate(updates) if one != (1.0, 1.0)), 0)
        yield Case(
            case,
            {
                "the number of forward passes": recorded.passes,
                DTYPE: recorded.dtype,
                UPDATES: torch.tensor(updates),
                "the losses that differ from those of the batches": [
                    f"number {number + 1}"
                    for number, loss in enumerate(right_losses)
                    if number != overflow
                    and not math.isclose(losses[number], loss, rel_tol=0.02, abs_tol=0.005)
                ],
            },
            {"number": wrong + 1, "seen": describe_update(*updates[wrong]) if updates else ""},
        )
    yield run.last_case()


OPTIMIZER = "optimizer = torch.optim.SGD(model.parameters(), lr=0.5)"
UNSCALE = "scaler.unscale_(optimizer)"
CLIP = "nn.utils.clip_grad_norm_(model.parameters(), 1.0)"

mistakes = [
    Mistake(
        "unchanged",
        "gradients are clipped while they are scaled. Unscale them first",
        answer=faulty,
        violates="a `train` without the fault",
    ),
    Mistake(
        "the limit of one scale",
        "gradients are clipped to a norm of 65,536, which is right only at that scale. Unscale "
        "them first",
        edits={UNSCALE: "pass", CLIP: CLIP.replace("1.0", "65536.0")},
    ),
    Mistake(
        *families.NO_CLIPPING,
        edits={CLIP: "pass"},
        violates="gradients clipped to a norm of 1",
    ),
    Mistake(
        "always to max_norm",
        "every gradient gets a norm of 1, so small ones grow. Leave those unchanged",
        edits={
            CLIP: "norm = nn.utils.get_total_norm([p.grad for p in model.parameters()])\n"
            "[p.grad.div_(norm) for p in model.parameters()]"
        },
    ),
    Mistake(
        *families.CLIPS_EACH_PARAMETER,
        edits={CLIP: "[nn.utils.clip_grad_norm_([p], 1.0) for p in model.parameters()]"},
    ),
    Mistake(
        *families.CLIPS_VALUES,
        edits={CLIP: CLIP.replace("norm_", "value_")},
    ),
    Mistake(
        "no scaler",
        NO_SCALER.feedback,
        edits={**NO_SCALER.edits, UNSCALE: "pass"},
        violates="a `GradScaler`",
    ),
    Mistake(
        *families.STEPS_BY_HAND,
        edits={STEP: "optimizer.step()"},
    ),
    Mistake(
        *families.UNSCALES_BY_HAND,
        edits={UNSCALE: "[p.grad.div_(scaler.get_scale()) for p in model.parameters()]"},
    ),
    Mistake(
        "a new scaler for each batch",
        "the scale is the initial one again for every batch, so it never falls. Make one scaler, "
        "before the loop",
        edits={CLEAR: f'scaler = torch.amp.GradScaler("cpu")\n{CLEAR}'},
    ),
    NO_UPDATE,
    IN_FP32,
    IN_BF16,
    *(
        Mistake(
            f"a rate of {rate}",
            "gradients are clipped while they are scaled, and a higher rate helps only by "
            "chance. Unscale them first",
            edits={UNSCALE: "pass", OPTIMIZER: OPTIMIZER.replace("0.5", rate)},
            violates="SGD with lr=0.5",
        )
        for rate in ("500.0", "32768.0")
    ),
    NEVER_CLEARS,
    Mistake(
        *families.CLEARS_BEFORE_THE_STEP,
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
        "In the faulty script, `clip_grad_norm_` returned about 65,536 times the gradients' true "
        "norm."
    )
    | {UPDATES: "{case}, an update of the weights is wrong: for batch {number}, {seen}"},
)
