"""Answers to `two_optimizers`, written without a look at its table of mistakes."""

import torch

from amp_course.checking import edited


def plain(body, heads, inputs, targets, loss_fn, optimizers, scaler):
    with torch.autocast("cpu", torch.float16):
        outputs = [head(features) for features in [body(inputs)] for head in heads]
        losses = [*map(loss_fn, outputs, targets)]
    for optimizer in optimizers:
        optimizer.zero_grad(set_to_none=False)
    scaler.scale(sum(losses)).backward()
    for optimizer in reversed(optimizers):
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
    scaler.update()


BACKWARD, STEP = "scaler.scale(sum(losses)).backward()", "scaler.step(optimizer)"
FINITE = (
    "if all(p.grad.isfinite().all() for p in optimizer.param_groups[0]['params']):\n    "
    "optimizer.step()"
)
GRAD = """parameters = [p for model in (body, *heads) for p in model.parameters()]
gradients = torch.autograd.grad(scaler.scale(sum(losses)), parameters)
for p, gradient in zip(parameters, gradients, strict=True):
    p.grad = gradient"""
OFF = torch.autocast("cpu", enabled=False)
LAZY = {"losses = [*map(loss_fn, outputs, targets)]": "losses = map(loss_fn, outputs, targets)"}
AUTOGRAD, FINITE_TESTS = edited(plain, {BACKWARD: GRAD}), edited(plain, {STEP: FINITE})
RIGHT = {"one sum": plain, "own finite tests": FINITE_TESTS, "autograd.grad": AUTOGRAD}
BOTH = "losses[0].backward(retain_graph=True)\nscaler.scale(losses[1]).backward()"
FINITE_SUM = f"if torch.isfinite(sum(losses)):\n    {BACKWARD}"
LEAVE = """if all(p.grad.isfinite().all() for p in optimizer.param_groups[0]["params"]):
    scaler.step(optimizer)
else:
    return scaler.update()"""
OWN = {
    "for optimizer in reversed(optimizers):": "for optimizer in optimizers:",
    STEP: "optimizer.step()",
}
FOR = "for optimizer in reversed(optimizers):"
WRONG = {
    "leaves at an overflow": (
        edited(plain, {FOR: FOR.replace("reversed(optimizers)", "optimizers"), STEP: LEAVE}),
        "stops at the first overflow",
    ),
    "step, update, step": (
        edited(
            plain,
            {
                FOR: "scaler.step(optimizers[0])\nscaler.update()\nif True:",
                "scaler.unscale_(optimizer)": "pass",
                STEP: "scaler.step(optimizers[1])",
                "scaler.update()": "pass",
            },
        ),
        "updates between the steps",
    ),
    "unscales, steps by hand": (edited(plain, OWN), "unscales, own steps"),
    "bad sum left out": (edited(plain, {BACKWARD: FINITE_SUM}), None),
    "scales one of two": (edited(plain, {BACKWARD: BOTH}), "scales only the second loss"),
    "the mean of both": (
        edited(plain, {BACKWARD: BACKWARD.replace("))", ") / 2)")}),
        "averages the losses",
    ),
    "heads in float32": (
        lambda b, h, *rest: plain(b, [lambda x, f=f: OFF(f)(x.float()) for f in h], *rest),
        None,
    ),
    "losses computed after the region": (edited(plain, LAZY), None),
}
