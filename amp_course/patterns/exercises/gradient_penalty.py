"""Exercise 3 of chapter 07: a step on a loss plus the norm of its gradient."""

import random
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from amp_course.checking import Card, Case, Exercise, Mistake, call_answer, families, show_number
from amp_course.patterns.exercises._shared import REGION_MESSAGES
from amp_course.watching.scene import Scene

card = Card(
    chapter="patterns",
    name="gradient_penalty",
    number=3,
    title="A gradient penalty",
    difficulty=4,
    importance=3,
    minutes=15,
    lines=10,
    task="Write `gradient_penalty(model, inputs, targets, loss_fn, optimizer, scaler, weight)`: a "
    "step on loss + weight · ‖gradient of the loss‖, in fp16 with a scaler; the norm is that of "
    "all gradients together. The gradient at the step is that of fp32 within 2 %, whatever the "
    "scale. A batch that overflows is skipped, and the scale falls. Clear the gradients as well.",
    hints=(
        "There are two backward passes through fp16. What does each start from, and what has to be "
        "undone before the norm?",
        "`torch.autograd.grad(scaler.scale(loss), model.parameters(), create_graph=True)` returns "
        "scaled gradients with a graph.",
        "Divide them by `scaler.get_scale()`, take one norm, and add `weight` times that to the "
        "loss. Then step as usual.",
    ),
    why="A penalty on scaled gradients is thousands of times too large. Without a scale, fp16 "
    "loses what it measures.",
    alternative="take the norm of the scaled gradients, and divide that by the scale.",
)


def right(
    model: Any, inputs: Any, targets: Any, loss_fn: Any, optimizer: Any, scaler: Any, weight: float
) -> None:
    with torch.autocast(inputs.device.type, dtype=torch.float16):
        loss = loss_fn(model(inputs), targets)
    scaled = torch.autograd.grad(scaler.scale(loss), model.parameters(), create_graph=True)
    gradients = [gradient / scaler.get_scale() for gradient in scaled]
    penalty = torch.cat([gradient.flatten() for gradient in gradients]).norm()
    total = loss + weight * penalty
    scaler.scale(total).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """Take steps where gradients are too small for fp16, and steps where they are too large."""
    yield from _train(answer, draw, 2.0**12, 2.0**-18)
    yield from _train(answer, draw, 2.0**-14, 2.0**20)


def _train(answer: Any, draw: random.Random, init_scale: float, size: float) -> Iterator[Case]:
    """Take three steps, of which the second overflows; the loss is multiplied by `size`."""
    scaler = {"init_scale": init_scale, "growth_interval": 100}
    scene = Scene(draw, 3, overflow_at=(1,), scaler=scaler, lr=0.1 / size)
    scene.model[1] = nn.Tanh()  # a ReLU has no second derivative
    passes: list[Any] = []

    def loss_fn(outputs: Tensor, targets: Tensor) -> Tensor:
        loss = scene.loss_fn(outputs, targets) * size
        if loss.requires_grad:  # whether a pass can be differentiated, and what it starts from
            loss.register_hook(lambda g: passes.append((torch.is_grad_enabled(), float(g))))
        return loss

    for number, (inputs, targets) in enumerate(scene.batches, 1):
        passes.clear()
        scale = show_number(scene.scaler.get_scale())  # type: ignore[union-attr]
        case = f"at step {number}{', which overflows' * (number == 2)}, with a scale of {scale}"
        given = scene.model, inputs, targets, loss_fn, scene.optimizer, scene.scaler, 2.0
        with warnings.catch_warnings(), scene.watch() as update:
            warnings.filterwarnings("ignore", message=".*create_graph=True")
            call_answer(answer, case, *given)
        evidence = {"passes": [*passes], "values": [one.value for one in update.backwards]}
        # A step may be skipped before its second pass, or after it.
        yield Case(case, scene.outputs(update), evidence={} if number == 2 else evidence)


REGION = "with torch.autocast(inputs.device.type, dtype=torch.float16):"
GRAD = "scaled = torch.autograd.grad(scaler.scale(loss), model.parameters(), create_graph=True)"
UNSCALED_GRAD = GRAD.replace("scaler.scale(loss)", "loss")
DIVIDE = "gradients = [gradient / scaler.get_scale() for gradient in scaled]"
NORM = "penalty = torch.cat([gradient.flatten() for gradient in gradients]).norm()"
TOTAL = "total = loss + weight * penalty"
BACKWARD, STEP = "scaler.scale(total).backward()", "scaler.step(optimizer)"

mistakes = [
    Mistake(
        "backward inside the region",
        "`backward()` ran inside the autocast region. End the `with` block after the loss or after "
        "the penalty",
        answer=torch.autocast("cpu", dtype=torch.float16)(right),
    ),
    Mistake(
        "norm of scaled gradients",
        "the penalty is off by the scale. Divide the scaled gradients by `scaler.get_scale()` "
        "first",
        edits={DIVIDE: "gradients = scaled"},
        violates="whatever the scale",
    ),
    Mistake(
        "first pass not scaled",
        "the first pass was not scaled, so fp16 lost small gradients. Scale its loss, and divide "
        "the gradients by the scale",
        edits={GRAD: UNSCALED_GRAD, DIVIDE: "gradients = scaled"},
        violates="with a scaler",
    ),
    Mistake(
        "first pass not scaled, and divided",
        "the first pass was not scaled, but its gradients were divided by the scale. Start it from "
        "`scaler.scale(loss)`",
        edits={GRAD: UNSCALED_GRAD},
    ),
    Mistake(
        "second pass not scaled",
        "the second pass was not scaled, and `scaler.step` divides anyway. Call "
        "`scaler.scale(total).backward()`",
        edits={BACKWARD: "total.backward()"},
    ),
    Mistake(
        "penalty not scaled",
        "the penalty's part of the gradient is too small by the scale. Divide by it once, before "
        "the norm, and scale the whole sum, `scaler.scale(total)`",
        edits={BACKWARD: "(scaler.scale(loss) + weight * penalty).backward()"},
    ),
    Mistake(
        "penalty alone",
        "the step is on the penalty alone. Add the loss itself",
        edits={TOTAL: "total = weight * penalty"},
        violates="a step on loss + weight",
    ),
    *(
        Mistake(
            name,
            "the first pass made no graph of its gradients. Call `autograd.grad(…, "
            "create_graph=True)`",
            edits={GRAD: GRAD.replace(", create_graph=True", instead)},
        )
        for name, instead in (("no graph", ", retain_graph=True"), ("graph freed", ""))
    ),
    Mistake(
        "detached",
        "the penalty did not change the gradients, since it was cut from its graph. Use no "
        "`detach`, `item`, `no_grad` or `get_total_norm` to compute it",
        edits={TOTAL: "total = loss + weight * penalty.item()"},
    ),
    Mistake(
        "no weight",
        "the penalty is not multiplied by `weight`",
        edits={TOTAL: "total = loss + penalty"},
    ),
    Mistake(
        "squared norm",
        "the penalty is the squared norm. Take the root",
        edits={NORM: f"{NORM}.square()"},
    ),
    Mistake(
        *families.SUM_OF_NORMS,
        edits={NORM: "penalty = sum(gradient.norm() for gradient in gradients)"},
        violates="the norm is that of all gradients together",
    ),
    Mistake(
        "without the biases",
        "the norm leaves out the gradients of the biases. Take that of all parameters",
        edits={DIVIDE: f"{DIVIDE}\ngradients = [one for one in gradients if one.dim() > 1]"},
    ),
    Mistake(
        "gradient of the inputs",
        "the penalty is the norm of the inputs' gradient, as in a WGAN. Take the parameters' "
        "gradients here",
        edits={
            REGION: f"inputs.requires_grad_()\n{REGION}",
            GRAD: GRAD.replace("model.parameters()", "inputs"),
        },
    ),
    Mistake(
        "norm in fp16",
        "the penalty overflowed or lost digits in fp16. Divide by the scale and take the norm in "
        "float32",
        edits={NORM: NORM.replace("norm", "half().norm")},
    ),
    Mistake(
        "backward for autograd.grad",
        "the first pass added its gradients to `p.grad`. Use `torch.autograd.grad`, which only "
        "returns them",
        edits={
            GRAD: "scaler.scale(loss).backward(create_graph=True)\n"
            "scaled = [p.grad for p in model.parameters()]"
        },
    ),
    Mistake(
        "never clears",
        "the gradients were not cleared after the overflow, so its NaN stays. Clear after a "
        "skipped step, too",
        edits={"optimizer.zero_grad()": "pass"},
        violates="Clear the gradients as well",
    ),
    Mistake(
        *families.UNSCALES_BY_HAND,
        edits={STEP: f"for p in model.parameters():\n    p.grad /= scaler.get_scale()\n{STEP}"},
    ),
    Mistake(
        *families.STEPS_WHILE_SCALED,
        edits={STEP: "optimizer.step()"},
        violates="A batch that overflows is skipped",
    ),
    Mistake(
        "unscales, own step",
        families.STEPS_BY_HAND[1],
        edits={STEP: "scaler.unscale_(optimizer)\noptimizer.step()"},
    ),
    Mistake(
        *families.NO_UPDATE,
        edits={"scaler.update()": "pass"},
    ),
    Mistake(
        "no update when skipped",
        "the batch was skipped without `scaler.update()`, so the scale stays. Let `scaler.step` "
        "skip, then update",
        edits={TOTAL: f"if not penalty.isfinite():\n    return\n{TOTAL}"},
        violates="the scale falls",
    ),
]

gradient_penalty = Exercise(card, right, cases, mistakes, tolerance=1e-2, messages=REGION_MESSAGES)
