"""Exercise 3 of chapter 06: the step in fp16, with a scaler."""

import random
from collections.abc import Iterator
from typing import Any

import torch

from amp_course.checking import Card, Case, Exercise, Mistake, families
from amp_course.loop.exercises.add_autocast import ANOTHER, MESSAGES, LoopScene, common

card = Card(
    chapter="loop",
    name="add_scaler",
    number=3,
    title="Add the scaler",
    difficulty=2,
    importance=5,
    minutes=8,
    lines=8,
    task="Write `add_scaler(model, inputs, targets, loss_fn, optimizer, scaler)`: the same step "
    "under fp16 autocast (its forward pass and its loss, and nothing else), with the "
    "`torch.amp.GradScaler` that is passed in. Three batches overflow, one in its loss, two only "
    "in some of the gradients, and the scaler has to skip these steps and lower its scale. One "
    "bias is frozen, and has no gradient. Return the loss unscaled, for the log.",
    hints=(
        "The scaler needs three calls: one before `backward()`, one in place of "
        "`optimizer.step()`, one after it.",
        "`scaler.scale(loss)` gives a scaled loss to call `backward()` on; `loss` itself stays "
        "unchanged.",
        "After the region: `scaler.scale(loss).backward()`, `scaler.step(optimizer)`, "
        "`scaler.update()`, then as before.",
    ),
    why="Scale, step and update belong together. If you leave one out, the loop still runs, on "
    "wrong gradients or on none.",
    alternative="`zero_grad()` at the top; or `scaler.unscale_(optimizer)` before the step, "
    "where clipping goes (chapter 07).",
)


def right(model: Any, inputs: Any, targets: Any, loss_fn: Any, optimizer: Any, scaler: Any) -> Any:
    with torch.autocast(inputs.device.type, dtype=torch.float16):
        loss = loss_fn(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    return loss.detach()


SPECIAL = {
    2: ", whose loss overflows",
    5: ", whose first gradient overflows",
    7: ", whose last gradient overflows",
}


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """Take the same eight steps, and then one of another training with another scaler.

    Three overflow, one of them right after a growth, the others after a clean step that counts.
    """
    options = {"init_scale": 2.0**16, "backoff_factor": 2.0**-6, "growth_interval": 2}
    scene = LoopScene(random.Random(6), 8, overflow_at=(1,), scaler=options)
    large = scene.batches[4][0] * 3e3
    scene.batches[4] = large, scene.model(large).argmin(dim=-1)  # all wrong, so all have gradients
    scene.model[0].bias.requires_grad_(False)
    last = scene.model[2].get_parameter("bias")
    last.register_hook(lambda gradient: gradient * (torch.inf if scene.number == 7 else 1.0))
    yield from scene.cases(answer, scene.scaler, special=SPECIAL)
    scene = LoopScene(random.Random(7), 1, scaler={"init_scale": 2.0**9})
    yield from scene.cases(answer, scene.scaler, training=ANOTHER)


REGION = "with torch.autocast(inputs.device.type, dtype=torch.float16):"
BACKWARD = "scaler.scale(loss).backward()"
STEP = "scaler.step(optimizer)"
UPDATE = "scaler.update()"

mistakes = [
    Mistake(
        *families.NO_FP16_AUTOCAST,
        edits={REGION: "if True:"},
        violates="under fp16 autocast",
    ),
    Mistake(
        "bf16",
        "the forward pass ran in bf16, which is also the CPU's default. Write "
        "`dtype=torch.float16` in the region",
        edits={REGION: REGION.replace("float16", "bfloat16")},
    ),
    *common(REGION, BACKWARD, STEP),
    Mistake(
        *families.LOSS_NOT_SCALED,
        edits={BACKWARD: "scaler.scale(loss)\nloss.backward()"},
    ),
    Mistake(
        *families.SCALER_OF_ITS_OWN,
        edits={BACKWARD: f"scaler = torch.amp.GradScaler('cpu')\n{BACKWARD}"},
        violates="that is passed in",
    ),
    Mistake(
        *families.UNSCALES_BY_HAND,
        edits={
            STEP: "for p in [p for p in model.parameters() if p.requires_grad]:\n"
            f"    p.grad /= scaler.get_scale()\n{STEP}"
        },
    ),
    Mistake(
        "no scaler",
        "the scaler that was passed in was never used, so steps that overflow go into the "
        "weights. Scale the loss for `backward()`, then call `scaler.step(optimizer)` and "
        "`scaler.update()`",
        edits={BACKWARD: "loss.backward()", STEP: "optimizer.step()", UPDATE: "pass"},
    ),
    Mistake(
        "steps by hand",
        "`scaler.update()` found no `scaler.step(optimizer)` before it. Call that instead of "
        "`optimizer.step()`: it divides by the scale, and skips on an overflow",
        edits={STEP: "optimizer.step()"},
    ),
    Mistake(
        "steps by hand, no update",
        "`optimizer.step()` used gradients that were still multiplied by the scale, and would use "
        "inf too. Call `scaler.step(optimizer)` instead, which divides and skips, and then "
        "`scaler.update()`",
        edits={STEP: "optimizer.step()", UPDATE: "pass"},
    ),
    Mistake(
        "steps twice",
        "there were two steps for one batch. `scaler.step(optimizer)` calls `optimizer.step()`, so "
        "leave your own call out",
        edits={STEP: f"{STEP}\noptimizer.step()"},
    ),
    Mistake(
        "steps before backward",
        "`backward()` did not run before `scaler.step(optimizer)`, so there were no gradients to "
        "check. Call it on the scaled loss first",
        edits={BACKWARD: "scaled = scaler.scale(loss)", UPDATE: f"scaled.backward()\n{UPDATE}"},
    ),
    Mistake(
        "unscales, own step",
        "the step was not skipped: `optimizer.step()` applies even NaN. Call "
        "`scaler.step(optimizer)`",
        edits={STEP: "scaler.unscale_(optimizer)\noptimizer.step()"},
        violates="skip these steps",
    ),
    Mistake(
        "overflow applied",
        "a finite loss can have gradients that overflow, and these were applied. Let "
        "`scaler.step` decide",
        edits={STEP: "scaler.unscale_(optimizer)\nif loss.isfinite():\n    optimizer.step()"},
    ),
    Mistake(
        "clears before the step",
        "`scaler.step(optimizer)` found no gradients. If you clear them after `backward()`, do it "
        "after the step",
        edits={STEP: f"optimizer.zero_grad()\n{STEP}"},
    ),
    Mistake(
        *families.NEVER_CLEARS,
        edits={"optimizer.zero_grad()": "pass"},
    ),
    Mistake(
        *families.NO_UPDATE,
        edits={UPDATE: "pass"},
    ),
    Mistake(
        "no update when skipped",
        "`scaler.update()` did not run after a skipped step, so the scale does not fall. Call it "
        "after every step",
        edits={UPDATE: f"if loss.isfinite():\n    {UPDATE}"},
    ),
    Mistake(
        "unscales after the step",
        "`scaler.unscale_` ran after `scaler.step`, which divides already. Leave it out, or call "
        "it first",
        edits={STEP: f"{STEP}\nscaler.unscale_(optimizer)"},
    ),
    Mistake(
        *families.UPDATES_BEFORE_THE_STEP,
        edits={STEP: f"scaler.unscale_(optimizer)\n{UPDATE}", UPDATE: STEP},
    ),
    Mistake(
        "leaves early and keeps the scale",
        "the scaler never saw a loss that is not finite, so its scale stays too large. Give it "
        "every loss",
        edits={BACKWARD: f"if not loss.isfinite():\n    return loss\n{BACKWARD}"},
    ),
    Mistake(
        "returns the scaled loss",
        "the loss that you return is the scaled one, which is only for `backward()`. Return the "
        "loss itself",
        edits={BACKWARD: "loss = scaler.scale(loss)\nloss.backward()"},
    ),
    Mistake(
        "divides by the new scale",
        "you divide the scaled loss by the scale after `update()`, which may change it. Return "
        "the loss itself",
        edits={
            BACKWARD: "(loss := scaler.scale(loss)).backward()",
            "return loss.detach()": "return loss.detach() / scaler.get_scale()",
        },
    ),
]

add_scaler = Exercise(card, right, cases, mistakes, tolerance=1e-4, messages=MESSAGES)
