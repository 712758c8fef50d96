"""Exercise 3 of chapter 04: one region for each step, which ends before the backward pass."""

import numbers
import random
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from amp_course.checking import (
    Card,
    Case,
    Exercise,
    Failed,
    Mistake,
    Wrong,
    alike,
    call_answer,
    families,
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
        "What belongs in the region, and what does not? How long does autocast keep its copies of "
        "the weights?",
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


LAYER = "the dtype that the first layer computes in"
PLACE = "where the loss is computed"
EARLIER = "whether the list holds the losses of an earlier call"


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """Three steps in one call, with one layer in eval mode; a second call; a loss of NaN."""
    scene = Scene(draw, 3)
    model, optimizer = scene.model, scene.optimizer
    model[1].eval()
    found, attributes = _modes(model), set(vars(model))
    values, inside = list[float](), list[bool]()
    where, modes, dtypes = list[str](), list[list[bool]](), list[str]()
    before = list[tuple[int, int]]()  # losses and backward passes before each step
    model[0].register_forward_pre_hook(lambda _, args: dtypes.append(dtype_name(args[0].dtype)))
    optimizer.register_step_pre_hook(lambda *_: before.append((max(len(values), 1), len(inside))))

    def loss_fn(outputs: Tensor, targets: Tensor) -> Tensor:
        loss = scene.loss_fn(outputs, targets)
        values.append(loss.item())
        where.append("in a region" if torch.is_autocast_enabled("cpu") else "outside of a region")
        modes.append(_modes(model))
        if loss.requires_grad:  # a hook, as `torch.autograd.grad` runs it too
            loss.register_hook(lambda gradient: inside.append(torch.is_autocast_enabled("cpu")))
        return loss

    with scene.watch() as update:
        got = call_answer(answer, "", model, (one for one in scene.batches), loss_fn, optimizer)
    if not values:
        raise Wrong(
            "`loss_fn` never ran: does your function `yield`, or were the batches used up before "
            "the loop?"
        )
    outputs = scene.outputs(update)
    gradients = outputs.pop("the gradient at the step")
    weights = outputs.pop("the weights after the step")
    outputs |= {
        "the number of backward passes inside the autocast region": sum(inside),
        LAYER: _some(outputs[LAYER]),
        PLACE: _some(" and ".join(sorted(set(where)))),
        "the number of forward passes": len(scene.layer_dtypes),
        "the number of losses computed before the first step": before[0][0] if before else 0,
        "the dtype of the inputs that the model gets": " and ".join(sorted(set(dtypes))),
        "`training` of the model and its layers": next((m for m in modes if m != found), found),
        "`training` of the model and its layers after the call": _modes(model),
        "what the model has after the call": sorted(set(vars(model)) - attributes) or "nothing new",
    }
    regions = bool([*update.of(Region)])
    evidence = {"losses": values, "regions": regions, "passes before": before[:1]}
    yield Case("in three steps", outputs, evidence=evidence)
    for number, gradient in enumerate(gradients, 1):
        yield Case(f"at step {number}", {"the gradient": gradient})
    yield Case("after three steps", {"the weights": weights})

    if not isinstance(got, Iterable) or isinstance(got, Iterator):
        raise Wrong("your function has to return a list of losses, one for each batch")
    losses = list(got)
    kinds = {type(loss).__name__ for loss in losses if not isinstance(loss, numbers.Real)}
    yield Case("", {"the items of the list": " and ".join(sorted(kinds)) or "float"})
    read = [read_number(loss, subject="your list holds") for loss in losses]
    short = read != values and all(loss == round(loss, 6) for loss in read)
    rounded = alike(read, values, 0.01) and (short or not alike(read, values, 1e-5))
    case = "at a second call"
    again = call_answer(answer, case, model, scene.batches[:1], scene.loss_fn, optimizer)
    earlier = alike(list(again)[-4:-1], read[-3:])
    yield Case("", {"the digits of the losses": rounded, EARLIER: earlier})
    yield Case("after three steps", {"the list of losses": read})
    taken, (inputs, targets) = len(before), scene.batches[0]
    with suppress(Failed):  # an assert is fine
        batches = [(inputs * torch.inf, targets)]
        lost = list(call_answer(answer, "", model, batches, scene.loss_fn, optimizer))
        counts = [len(lost), len(before) - taken]
        yield Case("for a loss of NaN", {"the numbers of losses and steps": counts})


def _some(kinds: str) -> str:
    return re.sub("(.*) and (.*)", r"\1 in some steps and \2 in others", kinds)


def _modes(model: nn.Module) -> list[bool]:
    return [one.training for one in model.modules()]


START = "losses = []"
LOOP = "for inputs, targets in batches:"
REGION = "with torch.autocast(inputs.device.type, dtype=torch.bfloat16):"
LOSS = "loss = loss_fn(outputs, targets)"
BACKWARD = "loss.backward()"
CLEAR = "optimizer.zero_grad()"
KEEP = "losses.append(loss.item())"
OFF = 'with torch.autocast("cpu", enabled=False):'
WIDE = {
    START: "region = torch.autocast('cpu', dtype=torch.bfloat16)\nregion.__enter__()\nlosses = []",
    REGION: "if True:",
    "return losses": "region.__exit__(None, None, None)\nreturn losses",
}
STALE = (
    "from step 2 on, forward uses the weights of step 1, because autocast keeps its copies until "
    "the outermost region ends"
)

mistakes = [
    Mistake(
        "the given loop",
        f"`backward()` runs inside the region, and {STALE}. Leave no region open around the loop",
        edits=WIDE,
    ),
    Mistake(
        "backward inside the region",
        "`backward()` runs in the region, which lowers what an island kept in float32. End the "
        "region before it",
        edits={BACKWARD: f"with torch.autocast('cpu', dtype=torch.bfloat16):\n    {BACKWARD}"},
        violates="backward does not",
    ),
    Mistake(
        "one region around all steps",
        f"{STALE}. Leave no region open around the loop, but open one for each step",
        edits=WIDE | {BACKWARD: f"{OFF}\n    {BACKWARD}"},
        violates="every step uses the weights that the previous step left",
    ),
    Mistake(
        *families.NO_AUTOCAST,
        edits={REGION: "if True:"},
    ),
    Mistake(
        "a region that is off",
        "autocast is off in forward. Is the region around it, enabled, and for the CPU "
        "(`inputs.device.type`)?",
        edits={REGION: OFF},
    ),
    Mistake(
        *families.FP16_REGION,
        edits={REGION: REGION.replace("bfloat", "float")},
        violates="one bf16 region",
    ),
    Mistake(
        *families.LOSS_OUTSIDE,
        edits={LOSS: f"{OFF}\n    {LOSS}"},
    ),
    Mistake(
        *families.FP32_LOSS_OUTSIDE,
        edits={LOSS: f"{OFF}\n    loss = loss_fn(outputs.float(), targets)"},
        violates="forward and loss run under autocast",
    ),
    *(
        Mistake(
            name,
            f"all layers are put into {name[:-5]} mode. Leave the modes to the caller",
            edits={LOOP: f"model.{call}()\n{LOOP}"},
            violates="all else stays as it is",
        )
        for name, call in {"eval mode": "eval", "training mode": "train"}.items()
    ),
    Mistake(
        "needs a list",
        "a generator has no length and no indices. Write `for inputs, targets in batches:`",
        edits={START: f"{START}\nlen(batches)"},
        violates="may be a generator",
    ),
    Mistake(
        *families.NEVER_CLEARS,
        edits={CLEAR: "pass"},
    ),
    Mistake(
        *families.CLEARS_BEFORE_THE_STEP,
        edits={BACKWARD: f"{BACKWARD}\n{CLEAR}"},
    ),
    Mistake(
        "no backward",
        "`backward()` never ran, so there were no gradients. Call `loss.backward()` after the "
        "region, before the step",
        edits={BACKWARD: "pass"},
    ),
    Mistake(
        "returns in the loop",
        "the function returns after the first batch. Move `return losses` out of the `for` loop",
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
        PLACE: "{case}, the loss is computed {got}. Compute it in a region in every step",
        EARLIER: "your list still holds the losses of an earlier call. Make a new list in each "
        "call (a default is made only once)",
        "the digits of the losses": "the losses that you return are rounded. Keep all the digits "
        "of `loss.item()`",
        "the items of the list": "your list holds values of type {got}. Keep `loss.item()`, a "
        "float without a graph",
    },
)
