"""Answers to `static_scaling`, written without a look at its table of mistakes."""

import torch

from amp_course.checking import edited


def clears_first(model, batches, loss_fn, optimizer, scale):
    optimizer.zero_grad(set_to_none=False)
    for inputs, targets in batches:
        (scale * loss_fn(model(inputs), targets)).backward()
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                parameter.grad = parameter.grad.float() * (1 / (scale * len(batches)))
    optimizer.step()


def by_torch(model, batches, loss_fn, optimizer, scale):
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    torch.stack([loss_fn(model(x), y) for x, y in batches]).mean().backward(
        gradient=scaler.scale(torch.ones(()))
    )
    scaler.step(optimizer)
    optimizer.zero_grad()


UNSCALE = "parameter.grad = parameter.grad.float() * (1 / (scale * len(batches)))"
ROUND = "parameter.grad = parameter.grad.bfloat16().float()"
DOUBLE = edited(
    clears_first, {UNSCALE: "parameter.grad.copy_(parameter.grad.double() / scale / len(batches))"}
)

RIGHT = {"clears first": clears_first, "torch's": by_torch, "in double": DOUBLE}
WRONG = {
    "divides by number": (
        edited(clears_first, {UNSCALE: "parameter.grad /= len(batches)"}),
        "forgets to unscale",
    ),
    "divides by scale": (
        edited(clears_first, {UNSCALE: "parameter.grad /= scale"}),
        "sum instead of mean",
    ),
    "rounds to bf16": (edited(clears_first, {UNSCALE: f"{UNSCALE}\n{ROUND}"}), None),
}
