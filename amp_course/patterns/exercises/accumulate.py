"""Exercise 1 of chapter 07: gradient accumulation over micro-batches of unequal size."""

import random
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

from amp_course.checking import Card, Case, Exercise, Mistake, call_answer, families
from amp_course.patterns.exercises._shared import REGION_MESSAGES
from amp_course.watching.scene import Scene, flat

card = Card(
    chapter="patterns",
    name="accumulate",
    number=1,
    title="Accumulate unequal micro-batches",
    difficulty=3,
    importance=5,
    minutes=15,
    lines=14,
    task="Write `accumulate(model, batches, loss_fn, optimizer, scaler, every, max_norm)`: one "
    "pass over micro-batches of unequal size, each with its own forward pass, in fp16 with a "
    "scaler. Each group of `every` micro-batches makes one update with the mean gradient of all "
    "its rows, clipped once. The last group may be short. If a micro-batch overflows, its group "
    "is skipped and the scale falls.",
    hints=(
        "What happens for every micro-batch, and what only once per group? Over what is a group's "
        "gradient the mean?",
        "Multiply each micro-batch's loss by `len(targets) / rows`, where `rows` counts those of "
        "its group. The scaled gradients add up.",
        "Then once per group: `unscale_`, `clip_grad_norm_`, step, update, `zero_grad`. A group is "
        "`batches[start : start + every]`.",
    ),
    why="Four small batches then equal one large one, to the last digit of fp16. Dividing by "
    "`every` is right only for equal sizes.",
    alternative="scale `loss * len(targets)`, and divide each gradient by the number of rows after "
    "`unscale_`.",
)


def right(
    model: Any, batches: Any, loss_fn: Any, optimizer: Any, scaler: Any, every: int, max_norm: float
) -> None:
    for start in range(0, len(batches), every):
        group = batches[start : start + every]
        rows = sum(len(targets) for _, targets in group)
        for inputs, targets in group:
            with torch.autocast(inputs.device.type, dtype=torch.float16):
                loss = loss_fn(model(inputs), targets)
            scaler.scale(loss * len(targets) / rows).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), max_norm)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


SIZES = (2, 8, 8, 3, 2, 8, 5, 3, 8, 2, 3, 8, 2)
PASSES = (  # first and last batch, `every`, max_norm, case
    (0, 4, 2, 100.0, "in a pass over 4 micro-batches, in groups of 2"),
    (4, 11, 3, 100.0, "in a pass over 7 micro-batches, in groups of 3; the third overflows"),
    (11, 13, 2, 0.05, "in a pass over 2 micro-batches, in one group, with `max_norm` 0.05"),
    (0, 3, 2, 100.0, "in a pass of another training over 3 micro-batches, in groups of 2"),
)


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """Make the passes. The scale is small, so unscaled gradients show if the next sum keeps
    them.
    """
    for first, end, every, max_norm, case in PASSES:
        if first == 0:
            scene, used = _training(draw)
            batches = [(x[:n], y[:n]) for (x, y), n in zip(scene.batches, SIZES, strict=True)]
        used.clear()
        given = scene.model, batches[first:end], scene.loss_fn, scene.optimizer, scene.scaler
        with scene.watch() as update:
            call_answer(answer, case, *given, every, max_norm)
        outputs = scene.outputs(update) | {
            "the gradient at the step": [*used],
            "the number of forward passes": len(scene.layer_dtypes),
        }
        # The pass with a small `max_norm` may begin with what an earlier one left.
        yield Case(case, outputs, evidence={"gradients": [*used]} if max_norm > 1 else {})


def _training(draw: random.Random) -> tuple[Scene, list[torch.Tensor]]:
    """Return a scene and a list for the gradients at its steps."""
    scene = Scene(draw, 13, overflow_at=(6,), scaler={"init_scale": 2.0, "growth_interval": 2})
    scene.model[1] = nn.Tanh()  # a ReLU's kink might set apart answers that round differently
    parameters, used = [*scene.model.parameters()], list[torch.Tensor]()
    # With momentum, gradients of 0 move the weights.
    scene.optimizer = torch.optim.SGD(parameters, lr=0.3, momentum=0.9)
    scene.optimizer.register_step_post_hook(
        lambda *_: used.append(flat(p * 0 if p.grad is None else p.grad for p in parameters))
    )
    return scene, used


LOOP = "for start in range(0, len(batches), every):"
ROWS = "rows = sum(len(targets) for _, targets in group)"
REGION = "with torch.autocast(inputs.device.type, dtype=torch.float16):"
SCALE = "scaler.scale(loss * len(targets) / rows).backward()"
BY_EVERY = "scaler.scale(loss / every).backward()"
UNSCALE, CLIP = "scaler.unscale_(optimizer)", "clip_grad_norm_(model.parameters(), max_norm)"
UPDATE, CLEAR = "scaler.update()", "optimizer.zero_grad()"

mistakes = [
    Mistake(
        *families.ONE_REGION_AROUND_ALL,
        answer=torch.autocast("cpu", dtype=torch.float16)(right),
    ),
    Mistake(
        *families.BACKWARD_INSIDE,
        edits={SCALE: f"{REGION}\n    {SCALE}"},
    ),
    Mistake(
        "one large batch",
        "a group ran as one large batch, which needs the memory that accumulation saves. Run each "
        "micro-batch separately",
        edits={ROWS: f"{ROWS}\ngroup = [tuple(map(torch.cat, zip(*group, strict=True)))]"},
        violates="each with its own forward pass",
    ),
    Mistake(
        *families.STEPS_EACH_MICRO_BATCH,
        edits={
            LOOP: "for start in range(len(batches)):",
            ROWS: "group, rows = batches[start : start + 1], every",
            SCALE: BY_EVERY,
        },
        violates="Each group of `every` micro-batches makes one update",
    ),
    Mistake(
        "mean of means",
        "that is the mean over micro-batches, as if all had one size. Weight each loss by "
        "`len(targets) / rows`",
        edits={SCALE: "scaler.scale(loss / len(group)).backward()"},
        violates="the mean gradient of all its rows",
    ),
    Mistake(
        "divides by every",
        "each micro-batch has the weight `1 / every`, whatever its size. Weight its loss by "
        "`len(targets) / rows`",
        edits={SCALE: BY_EVERY},
    ),
    Mistake(
        "the usual loop",
        "each micro-batch has the weight `1 / every`, whatever its size, and the short last group "
        "makes no update. Weight each loss by `len(targets) / rows` of its group, and update after "
        "the last micro-batch, too",
        edits={SCALE: BY_EVERY, UNSCALE: f"if len(group) < every:\n    break\n{UNSCALE}"},
    ),
    Mistake(
        "rows of the whole pass",
        "each loss was divided by the rows of the whole pass. Divide by those of its group",
        edits={ROWS: ROWS.replace("group)", "batches)")},
    ),
    Mistake(
        "leaves out what overflows",
        "a micro-batch that overflowed was left out, and its group stepped without it. Call "
        "`backward()` on every loss",
        edits={SCALE: f"if loss.isfinite():\n    {SCALE}"},
        violates="If a micro-batch overflows, its group is skipped",
    ),
    Mistake(
        "sum of means",
        "the gradients are the sum over the micro-batches. Weight each loss by its share, "
        "`len(targets) / rows`",
        edits={SCALE: "scaler.scale(loss).backward()"},
    ),
    Mistake(
        "drops the tail",
        "the short last group made no update. Update after the last micro-batch, too",
        edits={LOOP: "for start in range(0, len(batches) // every * every, every):"},
        violates="The last group may be short",
    ),
    Mistake(
        *families.CLEARS_EACH_MICRO_BATCH,
        edits={SCALE: f"{CLEAR}\n{SCALE}"},
    ),
    Mistake(
        *families.CLIPS_BEFORE_UNSCALING,
        edits={UNSCALE: CLIP, CLIP: UNSCALE},
    ),
    Mistake(
        *families.CLIPS_EACH_MICRO_BATCH,
        edits={SCALE: f"{SCALE}\n{CLIP[:-1]} * scaler.get_scale())"},
        violates="clipped once",
    ),
    Mistake(
        *families.NO_CLIPPING,
        edits={CLIP: "pass"},
    ),
    Mistake(
        *families.CLIPS_VALUES,
        edits={CLIP: f"nn.utils.{CLIP.replace('norm_', 'value_', 1)}"},
    ),
    Mistake(
        *families.CLIPS_EACH_PARAMETER,
        edits={CLIP: "[clip_grad_norm_(p, max_norm) for p in model.parameters()]"},
    ),
    Mistake(
        *families.CLIPS_IN_PARTS,
        edits={CLIP: "[clip_grad_norm_([*m.parameters()], max_norm) for m in model.children()]"},
    ),
    *(
        Mistake(name, families.NEVER_CLEARS[1], edits=edits)
        for name, edits in (
            ("never clears", {CLEAR: "pass"}),
            ("clears only at first", {CLEAR: "pass", LOOP: f"{CLEAR}\n{LOOP}"}),
            ("tail not cleared", {CLEAR: f"if len(group) == every:\n    {CLEAR}"}),
        )
    ),
    Mistake(
        "clears only after a step",
        "the skipped group's gradients were kept, so their NaN stays for good. Clear after every "
        "group",
        edits={
            UPDATE: f"old = scaler.get_scale()\n{UPDATE}",
            CLEAR: f"if scaler.get_scale() >= old:\n    {CLEAR}",
        },
    ),
    Mistake(
        *families.STEPS_BY_HAND,
        edits={"scaler.step(optimizer)": "optimizer.step()"},
        violates="its group is skipped",
    ),
    Mistake(
        "loss not scaled",
        "the gradient was divided by the scale once too often. Scale each loss, and let only "
        "`unscale_` divide",
        edits={SCALE: "scaler.scale(loss)\n(loss * len(targets) / rows).backward()"},
        violates="with a scaler",
    ),
    Mistake(
        "no update",
        "`scaler.update()` did not run between two groups. Call it once per group, after "
        "`scaler.step(optimizer)`",
        edits={UPDATE: "pass"},
        violates="the scale falls",
    ),
]

accumulate = Exercise(card, right, cases, mistakes, tolerance=1e-2, messages=REGION_MESSAGES)
