"""Exercise 3 of chapter 04: a training loop with one region for each step,
which ends before the backward pass.
"""

import numbers
import random
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from amp_course.checking import (
    Card,
    Case,
    Exercise,
    Failed,
    Mistake,
    Wrong,
    alike,
    call_answer,
    read_number,
    show_value,
)
from amp_course.kit.dtypes import dtype_name
from amp_course.watching.records import Region
from amp_course.watching.scene import Scene

card = Card(
    chapter="autocast",
    name="end_region",
    number=3,
    title="End the region in time",
    difficulty=2,
    importance=5,
    minutes=8,
    lines=9,
    task="The given loop opens one bf16 region around everything. Repair it as `end_region(model, "
    "batches, loss_fn, optimizer)`: forward and loss run under autocast, backward does not, every "
    "step uses the weights that the previous step left, and all else stays as it is. `batches` "
    "may be a generator. Return the losses as a list of floats, one for each batch.",
    hints=(
        "What belongs in the region, and what does not? And how long do the copies of the weights "
        "live that autocast makes?",
        "The `with` block goes inside the `for` loop and holds two lines: the model's call and "
        "the loss.",
        "After the block, `loss.backward()`, `optimizer.step()`, `optimizer.zero_grad()`, "
        "`losses.append(loss.item())`.",
    ),
    why="A region is one forward pass and its loss. A wider one trains on old weights and lowers "
    "what you kept in float32.",
    alternative="`torch.autocast` as the decorator of a function that returns the loss; "
    "`optimizer.zero_grad()` before forward; one wide region with `cache_enabled=False` and "
    "backward under `enabled=False`, which casts each weight at each use.",
)


def right(model: Any, batches: Any, loss_fn: Any, optimizer: Any) -> Any:
    losses = []
    for inputs, targets in batches:
        with torch.autocast(inputs.device.type, dtype=torch.bfloat16):
            outputs = model(inputs)
            loss = loss_fn(outputs, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


EARLIER, LAYER = (
    "whether the list holds the losses of an earlier call",
    "the dtype that the first layer computes in",
)


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """Three steps, in one call; one layer is in eval mode."""
    scene, values, inside, before = (
        Scene(draw, 3),
        list[float](),
        list[bool](),
        list[tuple[int, int]](),
    )
    where, modes, dtypes, model = list[str](), list[list[bool]](), list[str](), scene.model
    model[1].eval()
    found, names = [one.training for one in model.modules()], set(vars(model))
    model[0].register_forward_pre_hook(lambda _, args: dtypes.append(dtype_name(args[0].dtype)))
    scene.optimizer.register_step_pre_hook(
        lambda *_: before.append((max(len(values), 1), len(inside)))
    )

    def loss_fn(outputs: Tensor, targets: Tensor) -> Tensor:
        loss = scene.loss_fn(outputs, targets)
        values.append(loss.item())
        where.append("in a region" if torch.is_autocast_enabled("cpu") else "outside of a region")
        modes.append([one.training for one in model.modules()])
        if loss.requires_grad:  # `torch.autograd.grad` runs hooks too
            loss.register_hook(lambda gradient: inside.append(torch.is_autocast_enabled("cpu")))
        return loss

    with scene.watch() as update:
        got = call_answer(
            answer, "", model, (batch for batch in scene.batches), loss_fn, scene.optimizer
        )
    if not values:
        raise Wrong(
            "`loss_fn` never ran: does your function `yield`, or were the batches used up before "
            "the loop?"
        )
    outputs = {
        **scene.outputs(update),
        "the number of backward passes inside the autocast region": sum(inside),
    }
    gradients, weights = (
        outputs.pop("the gradient at the step"),
        outputs.pop("the weights after the step"),
    )
    outputs[LAYER] = re.sub("(.*) and (.*)", r"\1 in some steps and \2 in others", outputs[LAYER])
    outputs["where the loss is computed"] = " and ".join(sorted(set(where)))
    outputs["the number of forward passes"] = len(scene.layer_dtypes)
    outputs["the number of losses computed before the first step"] = before[0][0] if before else 0
    outputs["the dtype of the inputs that the model gets"] = " and ".join(sorted(set(dtypes)))
    outputs["`training` of the model and its layers"] = next(
        (mode for mode in modes if mode != found), found
    )
    outputs["`training` of the model and its layers after the call"] = [
        one.training for one in model.modules()
    ]
    outputs["what the model has after the call"] = sorted(set(vars(model)) - names) or "nothing new"
    evidence = {
        "losses": values,
        "regions": bool([*update.of(Region)]),
        "passes before": before[:1],
    }
    yield Case("in three steps", outputs, {}, evidence)
    for number, gradient in enumerate(gradients):
        yield Case(f"at step {number + 1}", {"the gradient": gradient})
    yield Case("after three steps", {"the weights": weights})
    if not isinstance(got, Iterable) or isinstance(got, Iterator):
        raise Wrong("your function has to return a list of losses, one for each batch")
    losses = list(got)
    kinds = {type(loss).__name__ for loss in losses if not isinstance(loss, numbers.Real)}
    yield Case("", {"the items of the list": " and ".join(sorted(kinds)) or "float"})
    read = [read_number(loss, subject="your list holds") for loss in losses]
    short = read != values and all(loss == round(loss, 6) for loss in read)
    rounded = alike(read, values, 0.01) and (short or not alike(read, values, 1e-5))
    again = call_answer(
        answer, "at a second call", model, scene.batches[:1], scene.loss_fn, scene.optimizer
    )
    yield Case(
        "", {"the digits of the losses": rounded, EARLIER: alike(list(again)[-4:-1], read[-3:])}
    )
    yield Case("after three steps", {"the list of losses": read})
    taken, batch = len(before), (scene.batches[0][0] * float("inf"), scene.batches[0][1])
    with suppress(Failed):  # an assert is fine
        lost = call_answer(answer, "", model, [batch], scene.loss_fn, scene.optimizer)
        yield Case(
            "for a loss of NaN",
            {"the numbers of losses and steps": [len(list(lost)), len(before) - taken]},
        )


REGION = "with torch.autocast(inputs.device.type, dtype=torch.bfloat16):"
LOSS, BACKWARD = "loss = loss_fn(outputs, targets)", "loss.backward()"
CLEAR, KEEP, LOOP = (
    "optimizer.zero_grad()",
    "losses.append(loss.item())",
    "for inputs, targets in batches:",
)
OFF, BF16 = (
    'with torch.autocast("cpu", enabled=False):',
    'with torch.autocast("cpu", dtype=torch.bfloat16):',
)
WIDE = {
    "losses = []": "losses, region = [], torch.autocast('cpu', "
    "dtype=torch.bfloat16)\nregion.__enter__()",
    REGION: "if True:",
    "return losses": "region.__exit__(None, None, None)\nreturn losses",
}
STALE = (
    "from step 2 on, forward uses the weights of step 1: autocast's copies live until the "
    "outermost region ends"
)

mistakes = [
    Mistake(
        "the given loop",
        f"`backward()` runs inside the region, and {STALE}. Leave no region open around the loop",
        edits=WIDE,
    ),
    Mistake(
        "backward inside",
        "`backward()` runs in the region, which lowers what an island kept in float32: end the "
        "region before it",
        edits={BACKWARD: f"{BF16}\n    {BACKWARD}"},
        violates="backward does not",
    ),
    Mistake(
        "one region around all steps",
        f"{STALE}. Leave no region open around the loop: open one for each step, inside it",
        edits=WIDE | {BACKWARD: f"{OFF}\n    {BACKWARD}"},
        violates="every step uses the weights that the previous step left",
    ),
    Mistake(
        "no region",
        "forward runs outside of autocast, in float32: put the model's call and the loss into the "
        "region",
        edits={REGION: "if True:"},
    ),
    Mistake(
        "a region that is off",
        "autocast is off in forward: is the region around it, enabled, and for the CPU "
        "(`inputs.device.type`)?",
        edits={REGION: OFF},
    ),
    Mistake(
        "an fp16 region",
        "the region is in fp16, and fp16 gradients need a scaler: use `dtype=torch.bfloat16`",
        edits={REGION: REGION.replace("bfloat", "float")},
        violates="one bf16 region",
    ),
    Mistake(
        "loss outside",
        "the loss is computed outside of the region, in 16 bits. Inside, autocast runs it in "
        "float32",
        edits={LOSS: f"{OFF}\n    {LOSS}"},
    ),
    Mistake(
        "float and loss outside",
        "the loss is computed where autocast is off: put `loss_fn` into the region, and leave all "
        "casts to it",
        edits={LOSS: f"{OFF}\n    loss = loss_fn(outputs.float(), targets)"},
        violates="forward and loss run under autocast",
    ),
    Mistake(
        "eval mode",
        "all layers are put into eval mode, without dropout: leave the modes to the caller",
        edits={LOOP: f"model.eval()\n{LOOP}"},
        violates="all else stays as it is",
    ),
    Mistake(
        "train mode",
        "all layers are put into train mode, even one that was in eval mode: leave the modes to "
        "the caller",
        edits={LOOP: f"model.train()\n{LOOP}"},
    ),
    Mistake(
        "needs a list",
        "a generator has no length and no indices: write `for inputs, targets in batches:`",
        edits={"losses = []": "losses, number = [], len(batches)"},
        violates="may be a generator",
    ),
    Mistake(
        "never clears",
        "gradients stay from step to step, and add up: call `optimizer.zero_grad()` in the loop, "
        "for each batch",
        edits={CLEAR: "pass"},
    ),
    Mistake(
        "clears before the step",
        "the gradients are cleared between `backward()` and the step, which then has nothing to "
        "apply",
        edits={BACKWARD: f"{BACKWARD}\n{CLEAR}"},
    ),
    Mistake(
        "returns in the loop",
        "the function returns after the first batch: move `return losses` out of the `for` loop",
        edits={KEEP: f"{KEEP}\nreturn losses"},
        violates="one for each batch",
    ),
]

end_region = Exercise(
    card,
    right,
    cases,
    mistakes,
    tolerance=2e-3,
    show=lambda one: f"{one:.4g}" if isinstance(one, float) else show_value(one),
    messages={
        EARLIER: "your list still holds the losses of an earlier call: make a new list in each (a "
        "default is made only once)",
        "the digits of the losses": "the losses that you return are rounded: keep all the digits "
        "of `loss.item()`",
        "the items of the list": "your list holds values of type {got}: keep `loss.item()`, a "
        "float without a graph",
    },
)
