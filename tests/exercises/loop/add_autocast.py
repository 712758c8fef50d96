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
BACKWARD, STEP = "loss.backward()", "optimizer.step()"
GRAD = "for p, g in zip(model.parameters(), torch.autograd.grad(loss, [*model.parameters()])):\n    p.grad = g"
LATE = f"loss = loss_fn(y.float(), targets)\n{BACKWARD}"
DECORATED = {REGION: "if on := torch.autocast('cpu'):", FORWARD: "loss = on(loss_fn)(on(model)(inputs), targets)"}
RIGHT = {
    "decorators, autograd.grad": edited(plain, {**DECORATED, BACKWARD: GRAD}),
    "loss in a second region": edited(plain, {FORWARD: "y = model(inputs)", BACKWARD: f"{REGION}\n    {LATE}"}),
    "in a closure": edited(plain, {BACKWARD: "pass", STEP: "optimizer.step(lambda: loss.backward() or loss)"}),
}
WRONG = {
    "all of it in the region": (torch.autocast("cpu", dtype=torch.bfloat16)(plain), "backward inside the region"),
    "looks first": (edited(plain, {FORWARD: f"model(inputs)\n{FORWARD}"}), "forward pass twice"),
    "in eval mode": (lambda model, *rest: plain(model.eval(), *rest), None),
}
