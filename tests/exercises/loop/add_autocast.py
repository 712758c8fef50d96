"""Answers to `add_autocast`, written without a look at its table of mistakes."""

import torch

from amp_course.checking import edited


def plain(model, inputs, targets, loss_fn, optimizer):
    optimizer.zero_grad(set_to_none=False)
    with torch.amp.autocast("cpu"):
        loss = loss_fn(model(inputs), targets)
    loss.backward()
    optimizer.step()
    return loss.item()


REGION, FORWARD = 'with torch.amp.autocast("cpu"):', "loss = loss_fn(model(inputs), targets)"
CLEAR, BACKWARD, STEP = (
    "optimizer.zero_grad(set_to_none=False)",
    "loss.backward()",
    "optimizer.step()",
)
GRAD = (
    "for p, g in zip(model.parameters(), torch.autograd.grad(loss, [*model.parameters()])):\n   "
    " p.grad = g"
)
LATE = f"loss = loss_fn(y.float(), targets)\n{BACKWARD}"
DECORATED = {
    REGION: "if on := torch.autocast('cpu'):",
    FORWARD: "loss = on(loss_fn)(on(model)(inputs), targets)",
}
RIGHT = {
    "decorators, autograd.grad": edited(plain, {**DECORATED, BACKWARD: GRAD}),
    "loss in a second region": edited(
        plain, {FORWARD: "y = model(inputs)", BACKWARD: f"{REGION}\n    {LATE}"}
    ),
    "in a closure": edited(
        plain, {BACKWARD: "pass", STEP: "optimizer.step(lambda: loss.backward() or loss)"}
    ),
}
ONE_MODEL: dict = {}


def first_model(model, *rest):
    return plain(ONE_MODEL.setdefault(0, model), *rest)


BY_HAND = f"for p in model.parameters():\n    p.grad = None\n{STEP}"
WRONG = {
    "cleared by hand": (edited(plain, {STEP: BY_HAND}), "clears before the step"),
    "step, then backward": (
        edited(plain, {CLEAR: "optimizer.zero_grad()", BACKWARD: STEP, STEP: BACKWARD}),
        "steps before backward",
    ),
    "a graph, and no backward": (edited(plain, {BACKWARD: "loss.grad_fn"}), "no backward"),
    "the first model again": (first_model, "remembers an earlier call"),
    "all of it in the region": (
        torch.autocast("cpu", dtype=torch.bfloat16)(plain),
        "backward inside the region",
    ),
    "looks first": (edited(plain, {FORWARD: f"model(inputs)\n{FORWARD}"}), "forward pass twice"),
    "in eval mode": (lambda model, *rest: plain(model.eval(), *rest), None),
}
