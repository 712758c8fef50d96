"""Exercise 2 of chapter 06: the step under bf16 autocast."""

import random
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from amp_course.checking import Card, Case, Exercise, Mistake, call_answer, families, read_number
from amp_course.watching.scene import Scene

card = Card(
    chapter="loop",
    name="add_autocast",
    number=2,
    title="Add autocast",
    difficulty=1,
    importance=5,
    minutes=5,
    lines=6,
    task="Write `add_autocast(model, inputs, targets, loss_fn, optimizer)`: the fp32 step below, "
    "with its forward pass and its loss, and nothing else, under bf16 autocast. Return the loss.",
    hints=(
        "One `with` block is all that autocast needs. Which two lines belong in it?",
        "`torch.autocast(device_type, dtype)`: the device type is `inputs.device.type`, so that "
        "the step runs on any device.",
        "The model's call and the loss go inside it; `backward()`, the step and `zero_grad()` "
        "come after it.",
    ),
    why="Autocast chooses dtypes for the ops of the forward pass and the loss, so the region "
    "covers those. Backward uses the same dtypes.",
    alternative='`@torch.autocast("cuda", dtype=torch.bfloat16)` as a decorator of `forward`, and '
    "the loss in another region.",
)


def right(model: Any, inputs: Any, targets: Any, loss_fn: Any, optimizer: Any) -> Any:
    with torch.autocast(inputs.device.type, dtype=torch.bfloat16):
        loss = loss_fn(model(inputs), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


REQUIRES = "`requires_grad` of the parameters afterwards"
UNDER = "what else runs under autocast"
AFTER = "autocast after your function"
COUNT = "the scaler's growth count"
MESSAGES = {
    REQUIRES: "your code changed `requires_grad` of parameters. Leave it as it was",
    UNDER: "besides the forward pass and the loss, {got} ran under autocast. End the region after "
    "the loss",
    AFTER: "autocast was still on after your function returned. Use `with`, which turns it off "
    "again",
    COUNT: "{case}, the scaler's count of clean steps is {got} afterwards, and {want} is right. "
    "`scaler.update()` keeps that count, and `scaler.update(new_scale)` does not touch it",
}
ANOTHER = " of another training"


class LoopScene(Scene):
    """A scene that also records in which mode the model trains, and what runs under autocast."""

    mode, on, inside, number = "", "", "", 0

    def loss_fn(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self.mode = "train" if self.model.training else "eval"
        on = torch.is_autocast_enabled("cpu")
        self.on = str(torch.get_autocast_dtype("cpu")) if on else "off"
        return super().loss_fn(outputs, targets)

    def record(self, what: str, _: Any = None) -> None:
        """Record what runs, if autocast is on."""
        if torch.is_autocast_enabled("cpu") and what not in self.inside:
            self.inside += f" and {what}" if self.inside else what

    def cases(
        self,
        answer: Any,
        *scaler: Any,
        special: Mapping[int, str] | None = None,
        training: str = "",
    ) -> Iterator[Case]:
        """Take a step with each batch, with unusual settings of the optimizer.

        special, training: what to say of a step, by its number, and of all of them
        """
        self.optimizer.param_groups[0].update(lr=0.03, momentum=0.75, weight_decay=0.01)
        self.optimizer.register_step_pre_hook(lambda *_: self.record("`optimizer.step()`"))
        clear: Any = self.optimizer.zero_grad
        vars(self.optimizer)["zero_grad"] = lambda *args, **named: self.record(
            "`zero_grad()`", clear(*args, **named)
        )
        for inputs, targets in self.batches:
            self.number, self.inside = self.number + 1, ""
            case = f"at step {self.number}{training}{(special or {}).get(self.number, '')}"
            arguments = self.model, inputs, targets, self.loss_fn, self.optimizer, *scaler
            with self.watch() as update:
                got = call_answer(answer, case, *arguments)
            outputs = {
                REQUIRES: [one.requires_grad for one in self.model.parameters()],
                "the number of forward passes": len(self.layer_dtypes),
                **self.outputs(update),
                COUNT: self.scaler._get_growth_tracker() if self.scaler else 0,
                "the mode that the model trains in": self.mode,
                "autocast for the loss": self.on,
                UNDER: self.inside or "nothing",
                AFTER: torch.is_autocast_enabled("cpu"),
                "the loss that you return": read_number(got, case),
            }
            torch.set_autocast_enabled("cpu", False)
            yield Case(case, outputs, evidence=self.evidence(update))


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """Take the same four steps, and then one of another model with its own optimizer."""
    yield from LoopScene(random.Random(6), 4).cases(answer)
    yield from LoopScene(random.Random(7), 1).cases(answer, training=ANOTHER)


REGION = "with torch.autocast(inputs.device.type, dtype=torch.bfloat16):"
FORWARD = "loss = loss_fn(model(inputs), targets)"
BACKWARD = "loss.backward()"
STEP = "optimizer.step()"
CLEAR = "optimizer.zero_grad()"


def common(region: str, backward: str, step: str) -> list[Mistake]:
    """Return mistakes that people make with a scaler, too; the arguments are lines of `right`."""
    forward = {FORWARD: "outputs = model(inputs)"}
    return [
        Mistake(
            *families.LOSS_OUTSIDE,
            edits={**forward, backward: f"loss = loss_fn(outputs, targets)\n{backward}"},
        ),
        Mistake(
            *families.FP32_LOSS_OUTSIDE,
            edits={**forward, backward: f"loss = loss_fn(outputs.float(), targets)\n{backward}"},
        ),
        Mistake(
            *families.BACKWARD_INSIDE,
            edits={backward: f"{region}\n    {backward}"},
            violates="and nothing else",
        ),
        Mistake(
            "step inside the region",
            "`optimizer.step()` ran under autocast. End the region after the loss, since an "
            "optimizer updates in fp32",
            edits={step: f"{region}\n    {step}"},
        ),
        Mistake(
            "an optimizer of its own",
            "the step did not use the learning rate and momentum of the optimizer that is passed "
            "in. Use that one",
            edits={step: f"optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n{step}"},
        ),
    ]


mistakes = [
    Mistake(
        *families.NO_AUTOCAST,
        edits={REGION: "if True:"},
        violates="under bf16 autocast",
    ),
    Mistake(
        *families.CONVERTS_THE_MODEL,
        edits={REGION: "model.bfloat16()\ninputs = inputs.bfloat16()\nif True:"},
    ),
    *common(REGION, BACKWARD, STEP),
    Mistake(
        "forward pass twice",
        "the model ran twice in one step, which costs time, and moves batch norm's averages "
        "twice. Call it once",
        edits={"return loss.detach()": "return loss_fn(model(inputs), targets)"},
    ),
    Mistake(
        *families.NEVER_CLEARS,
        edits={CLEAR: "pass"},
    ),
    Mistake(
        *families.CLEARS_BEFORE_THE_STEP,
        edits={BACKWARD: f"{BACKWARD}\n{CLEAR}", CLEAR: "pass"},
    ),
    Mistake(
        "steps before backward",
        "the optimizer stepped before `backward()`, when there were no gradients, so the weights "
        "never change. Call `backward()` first",
        edits={BACKWARD: STEP, STEP: BACKWARD},
    ),
    Mistake(
        "one batch late",
        "each step used the gradients of the previous batch, and the first step none. Call "
        "`backward()` first, then the step, then `zero_grad()`",
        edits={BACKWARD: STEP, STEP: CLEAR, CLEAR: BACKWARD},
    ),
    Mistake(
        "no backward",
        "`backward()` never ran, so there were no gradients and the weights never change. Call "
        "`loss.backward()` after the region",
        edits={BACKWARD: "pass"},
    ),
    Mistake(
        "no step",
        "the optimizer never stepped. Call `optimizer.step()` after `backward()`",
        edits={STEP: "pass"},
    ),
    Mistake(
        *families.FP16_REGION,
        edits={REGION: REGION.replace("bfloat16", "float16")},
    ),
]

add_autocast = Exercise(card, right, cases, mistakes, tolerance=1e-4, messages=MESSAGES)
