"""Exercise 1 of chapter 05: one optimizer step with a fixed loss scale."""

import math
import random
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from amp_course.checking import Card, Case, Exercise, Mistake, call_answer, families
from amp_course.scaler.exercises._shared import watch_steps
from amp_course.watching.scene import Scene, flat

card = Card(
    chapter="scaler",
    name="static_scaling",
    number=1,
    title="A fixed loss scale",
    difficulty=2,
    importance=5,
    minutes=10,
    lines=8,
    task="Write `static_scaling(model, batches, loss_fn, optimizer, scale)`: one optimizer step "
    "on the mean of the losses of a few micro-batches, with `scale` as a fixed loss scale. Each "
    "micro-batch counts the same, whatever its size. The model opens its own fp16 region, and its "
    "gradients are too small for fp16; the optimizer must get the true ones. A parameter may have "
    "no gradient, and then gets none. Gradients of one step must not reach the next.",
    hints=(
        "The scale multiplies one number and has to be divided out of many. Which number is it, "
        "and when is the last moment to divide?",
        "`(loss * scale).backward()` for each micro-batch; the gradients add up. For their mean, "
        "divide each by `len(batches)`.",
        "After the loop, once: `parameter.grad.div_(scale)` where there is a gradient; then step, "
        "then `optimizer.zero_grad()`.",
    ),
    why="This is all of loss scaling. A GradScaler adds two things: it finds the scale, and it "
    "survives a bad step.",
    alternative="divide by `scale * len(batches)` after the loop, and leave the losses unchanged.",
)


def right(model: Any, batches: Any, loss_fn: Any, optimizer: Any, scale: float) -> Any:
    for inputs, targets in batches:
        loss = loss_fn(model(inputs), targets) / len(batches)
        (loss * scale).backward()
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.div_(scale)
    optimizer.step()
    optimizer.zero_grad()


OFF = "the number of inexact gradients at the step"
TINY = 2.0**-17  # of the model's outputs: without a scale, many gradients are 0 in fp16
# Micro-batches, scale, and factor of the model. The large gradients of the second step reach the
# third if nobody clears them.
STEPS = (1, 2.0**17, TINY), (2, 1.0, 8.0), (1, 4.0, TINY), (3, 2.0**27, TINY)


class Fp16Model(nn.Module):
    """A model that opens its own fp16 region, and multiplies its outputs by a factor."""

    def __init__(self, body: nn.Module, factor: float = TINY) -> None:
        super().__init__()
        self.body, self.factor = body, factor

    def forward(self, inputs: Tensor) -> Tensor:
        with torch.autocast(inputs.device.type, dtype=torch.float16):
            outputs = self.body(inputs)
        return outputs.float() * self.factor


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """Four steps, with two parameter groups and a parameter that is not used."""
    scene = Scene(draw, 7)
    body, batches, factors = scene.model, iter(scene.batches), list[float]()
    body.register_parameter("idle", nn.Parameter(torch.ones(3)))
    weights: list[Any] = [*body[0].parameters(), *body[2].parameters(), body.idle]
    first: dict[str, Any] = {"params": weights[:2]}
    second = {"params": weights[2:], "weight_decay": 1.0}
    scene.optimizer = torch.optim.SGD([first, second], lr=0.1)
    used, model = watch_steps(scene.optimizer), Fp16Model(body)

    def loss_fn(outputs: Tensor, targets: Tensor) -> Tensor:
        loss = scene.loss_fn(outputs, targets)
        if loss.requires_grad:
            loss.register_hook(lambda gradient: factors.append(float(gradient)))
        return loss

    for number, (size, scale, model.factor) in enumerate(STEPS, 1):
        batch = "micro-batches" if size > 1 else "micro-batch"
        case = f"at step {number}, with {size} {batch} and a scale of {scale:,.0f}"
        whole, *rest = (next(batches) for _ in range(size))
        mine = [whole, *((inputs[:5], targets[:5]) for inputs, targets in rest)]
        loss = loss_fn(model(whole[0]), whole[1]) * scale
        grads = torch.autograd.grad(loss, weights, allow_unused=True, materialize_grads=True)
        true = flat(grads) / scale
        used.clear()
        factors.clear()
        with scene.watch() as update:
            call_answer(answer, case, model, mine, loss_fn, scene.optimizer, scale)
        # The mean may be taken in the losses or in the gradients
        fit = [
            any(math.isclose(f, s, rel_tol=1e-3) for s in (scale, scale / size)) for f in factors
        ]
        factor = factors[fit.index(False)] if size == 1 and not all(fit) else scale
        outputs: dict[str, Any] = {
            "the number that the loss is multiplied by before `backward()`": factor
        }
        seen = scene.outputs(update)
        seen |= {"the number of optimizer steps": len(used), "the gradient at the step": list(used)}
        outputs |= {one: seen[one] for one in seen if "step" in one or "weights" in one}
        if size == 1:  # then every right answer has the same gradients
            outputs[OFF] = sum(int(((g - true).abs() > 1e-3 * true.abs()).sum()) for g in used)
        rates = [float(group["lr"]) for group in scene.optimizer.param_groups]
        training = model.training and body.training
        outputs["the learning rate that you leave"] = rates
        outputs["the mode that you leave the model in"] = "train" if training else "eval"
        evidence = {"losses": len(factors), "scaled": all(fit)}
        yield Case(case, outputs, {"size": size, "number": number}, evidence)


LOOP = "for inputs, targets in batches:"
MEAN = "loss = loss_fn(model(inputs), targets) / len(batches)"
BACKWARD = "(loss * scale).backward()"
EACH = "for parameter in model.parameters():"
HAS = "if parameter.grad is not None:"
DIVIDE = "parameter.grad.div_(scale)"
STEP = "optimizer.step()"
CLEAR = "optimizer.zero_grad()"

mistakes = [
    Mistake(
        "forgets to unscale",
        "the gradients still carry the scale at the optimizer step. Divide every `parameter.grad` "
        "first, in place",
        edits={DIVIDE: "pass"},
        violates="the optimizer must get the true ones",
    ),
    Mistake(
        *families.FIRST_GROUP_ONLY,
        edits={EACH: 'for parameter in optimizer.param_groups[0]["params"]:'},
    ),
    Mistake(
        *families.PLAIN_LOSS,
        edits={BACKWARD: "loss.backward()"},
        violates="with `scale` as a fixed loss scale",
    ),
    Mistake(
        "ignores the scale that it gets",
        "the loss is always scaled by the same number, whatever is passed in. Use the argument "
        "`scale`",
        edits={LOOP: f"scale = 2.0**16\n{LOOP}"},
    ),
    Mistake(
        "unscales inside the loop",
        "the gradients of earlier micro-batches are divided again and again. Unscale once, after "
        "the loop",
        edits={BACKWARD: f"{BACKWARD}\n{EACH}\n    {HAS}\n        {DIVIDE}", DIVIDE: "pass"},
    ),
    Mistake(
        "sum instead of mean",
        "the gradients of {size} micro-batches were added up. For their mean, divide each loss by "
        "`len(batches)`",
        edits={MEAN: MEAN.removesuffix(" / len(batches)")},
        violates="the mean of the losses",
    ),
    Mistake(
        *families.CLEARS_EACH_MICRO_BATCH,
        edits={MEAN: f"{CLEAR}\n{MEAN}"},
    ),
    Mistake(
        *families.NEVER_CLEARS,
        edits={CLEAR: "pass"},
        violates="Gradients of one step must not reach the next",
    ),
    Mistake(
        *families.CLEARS_BEFORE_THE_STEP,
        edits={STEP: f"{CLEAR}\n{STEP}"},
    ),
    Mistake(
        *families.STEPS_EACH_MICRO_BATCH,
        answer=lambda model, batches, *rest: any(right(model, [one], *rest) for one in batches),
        violates="one optimizer step",
    ),
    Mistake(
        *families.A_GRADIENT_IS_NONE,
        edits={HAS: "if True:"},
        violates="A parameter may have no gradient",
    ),
    Mistake(
        *families.ZEROS_FOR_NONE,
        edits={
            HAS: "if parameter.grad is None:\n    parameter.grad = torch.zeros_like(parameter)\n"
            "if True:"
        },
        violates="and then gets none",
    ),
    Mistake(
        "weights by the sizes",
        "larger micro-batches count for more. The mean of the losses gives each the same weight, "
        "1/{size}",
        edits={MEAN: MEAN.replace("len(b", "sum(len(x) for x, _ in b") + " * len(inputs)"},
    ),
]

static_scaling = Exercise(
    card,
    right,
    cases,
    mistakes,
    tolerance=1e-2,
    messages={
        OFF: "at step {number}, {got} of 712 gradients are off by more than 0.1 %. Were they "
        "rounded on the way?"
    },
)
