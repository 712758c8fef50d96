"""Exercise 3 of chapter 06: the step in fp16, with a scaler."""

import random
from collections.abc import Iterator
from typing import Any

import torch

from amp_course.checking import Card, Case, Exercise, Mistake
from amp_course.loop.exercises.add_autocast import ANOTHER, SAID, LoopScene, common

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
    "in some of the gradients: the scaler has to skip these steps and lower its scale. One bias "
    "is frozen, and has no gradient. Return the loss unscaled, for the log.",
    hints=(
        "The scaler takes over three calls: one before `backward()`, one in place of "
        "`optimizer.step()`, one after it.",
        "`scaler.scale(loss)` gives a scaled loss to call `backward()` on; `loss` itself stays "
        "unchanged.",
        "After the region: `scaler.scale(loss).backward()`, `scaler.step(optimizer)`, "
        "`scaler.update()`, then as before.",
    ),
    why="Scale, step and update belong together: leave one out and the loop still runs, on wrong "
    "gradients or on none.",
    alternative="`zero_grad()` at the top; or `scaler.unscale_(optimizer)` before the step: "
    "clipping goes there (chapter 07).",
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
    """Take the same eight steps; then one of another training, whose scaler is another, too.

    Three overflow, one of them right after a growth, the others after a clean step that counts.
    """
    options = {"init_scale": 2.0**16, "backoff_factor": 2.0**-6, "growth_interval": 2}
    scene = LoopScene(random.Random(6), 8, overflow_at=(1,), scaler=options)
    large = scene.batches[4][0] * 3e3
    scene.batches[4] = (
        large,
        scene.model(large).argmin(dim=-1),
    )  # all wrong, so that every row has a gradient
    scene.model[0].bias.requires_grad_(False)
    last = scene.model[2].get_parameter("bias")
    last.register_hook(lambda gradient: gradient * (torch.inf if scene.number == 7 else 1.0))
    yield from scene.cases(answer, scene.scaler, special=SPECIAL)
    scene = LoopScene(random.Random(7), 1, scaler={"init_scale": 2.0**9})
    yield from scene.cases(answer, scene.scaler, training=ANOTHER)


REGION = "with torch.autocast(inputs.device.type, dtype=torch.float16):"
EACH = "for p in [p for p in model.parameters() if p.requires_grad]:"
SCALE, STEP, UPDATE = "scaler.scale(loss).backward()", "scaler.step(optimizer)", "scaler.update()"
RETURN, DIVIDED = "return loss.detach()", "return loss.detach() / scaler.get_scale()"

mistakes = [
    Mistake(
        "no autocast",
        "the forward pass ran in fp32: put it into `with torch.autocast(inputs.device.type, "
        "dtype=torch.float16):`",
        edits={REGION: "if True:"},
        violates="under fp16 autocast",
    ),
    Mistake(
        "bf16",
        "the forward pass ran in bf16, which is the CPU's default, too: write "
        "`dtype=torch.float16` in the region",
        edits={REGION: "with torch.autocast(inputs.device.type, dtype=torch.bfloat16):"},
    ),
    *common(REGION, SCALE, STEP),
    Mistake(
        "scaled loss not used",
        "`backward()` ran on an unscaled loss, and `scaler.step` divides anyway: call it on "
        "`scaler.scale(loss)`",
        edits={SCALE: "scaler.scale(loss)\nloss.backward()"},
    ),
    Mistake(
        "scaler of its own",
        "the scaler that was passed in was never used, and the scale in your steps never changes: "
        "use `scaler`",
        edits={SCALE: f"scaler = torch.amp.GradScaler('cpu')\n{SCALE}"},
        violates="that is passed in",
    ),
    Mistake(
        "divides by hand too",
        "the gradients were divided by the scale twice: leave your own division out, "
        "`scaler.step` divides",
        edits={STEP: f"{EACH} p.grad /= scaler.get_scale()\n{STEP}"},
    ),
    Mistake(
        "no scaler at all",
        "the scaler that was passed in was never used, so steps that overflow go into the "
        "weights: scale the loss for `backward()`, then call `scaler.step(optimizer)` and "
        "`scaler.update()`",
        edits={SCALE: "loss.backward()", STEP: "optimizer.step()", UPDATE: "pass"},
    ),
    Mistake(
        "steps by hand",
        "`scaler.update()` found no `scaler.step(optimizer)` before it: call that, not "
        "`optimizer.step()`. It divides by the scale, and skips if it must",
        edits={STEP: "optimizer.step()"},
    ),
    Mistake(
        "steps by hand, no update",
        "`optimizer.step()` used gradients that were still multiplied by the scale, and would use "
        "inf too: call `scaler.step(optimizer)` instead, which divides and skips, and then "
        "`scaler.update()`",
        edits={STEP: "optimizer.step()", UPDATE: "pass"},
    ),
    Mistake(
        "steps twice",
        "there were two steps for one batch: `scaler.step(optimizer)` calls `optimizer.step()` "
        "itself, so leave your own call out",
        edits={STEP: f"{STEP}\noptimizer.step()"},
    ),
    Mistake(
        "steps before backward",
        "`scaler.step(optimizer)` came before `backward()`, when there were no gradients to "
        "check: call `backward()` on the scaled loss first",
        edits={SCALE: "scaled = scaler.scale(loss)", UPDATE: f"scaled.backward()\n{UPDATE}"},
    ),
    Mistake(
        "unscales, own step",
        "the step was not skipped, for `optimizer.step()` applies even NaN: call "
        "`scaler.step(optimizer)`",
        edits={STEP: "scaler.unscale_(optimizer)\noptimizer.step()"},
        violates="skip these steps",
    ),
    Mistake(
        "overflow applied",
        "a finite loss can have gradients that overflow, and these were applied: let "
        "`scaler.step` decide",
        edits={STEP: "scaler.unscale_(optimizer)\nif loss.isfinite():\n    optimizer.step()"},
    ),
    Mistake(
        "cleared before the step",
        "`scaler.step(optimizer)` found no gradients: if you clear them after `backward()`, do it "
        "after the step",
        edits={STEP: f"optimizer.zero_grad()\n{STEP}"},
    ),
    Mistake(
        "not cleared",
        "gradients of an earlier step are still there, and new ones are added: call `zero_grad()` "
        "in every step",
        edits={"optimizer.zero_grad()": "pass"},
    ),
    Mistake(
        "no update",
        "`scaler.update()` did not run after step 1: call it after every step, skipped or not",
        edits={UPDATE: "pass"},
    ),
    Mistake(
        "unscales after the step",
        "`scaler.unscale_` ran after `scaler.step`, which divides already: leave it out, or call "
        "it before that",
        edits={STEP: f"{STEP}\nscaler.unscale_(optimizer)"},
    ),
    Mistake(
        "updates before the step",
        "`update()` came before the step, so the scaler forgot that it had divided, and did it "
        "again: call it last",
        edits={STEP: f"scaler.unscale_(optimizer)\n{UPDATE}", UPDATE: STEP},
    ),
    Mistake(
        "leaves early and keeps the scale",
        "the scaler never heard of a loss that is not finite: give it every loss, or its scale "
        "stays too large",
        edits={SCALE: f"if not loss.isfinite():\n    return loss\n{SCALE}"},
    ),
    Mistake(
        "returns the scaled loss",
        "the loss that you return is the scaled one, good for `backward()` only: return the loss "
        "itself",
        edits={SCALE: "loss = scaler.scale(loss)\nloss.backward()"},
    ),
    Mistake(
        "divides by the new scale",
        "you divide the scaled loss by the scale after `update()`, which may change it: return "
        "the loss itself",
        edits={SCALE: "(loss := scaler.scale(loss)).backward()", RETURN: DIVIDED},
    ),
]

add_scaler = Exercise(card, right, cases, mistakes, tolerance=1e-4, messages=SAID)
