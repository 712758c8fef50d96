"""Answers to `gradient_penalty`, written without a look at its table of mistakes."""

import torch

from amp_course.checking import edited


def plain(model, inputs, targets, loss_fn, optimizer, scaler, weight):
    optimizer.zero_grad(set_to_none=False)
    with torch.autocast("cpu", torch.float16):
        loss = loss_fn(model(inputs), targets)
    scaled = torch.autograd.grad(scaler.scale(loss), list(model.parameters()), create_graph=True)
    norm = torch.cat([g.flatten() for g in scaled]).norm() / scaler.get_scale()
    scaler.scale(loss + norm * weight).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()


FIRST, SMALLER = (
    "grad_outputs=torch.tensor(scaler.get_scale()), create",
    "scaler.update(scaler.get_scale() / 2)",
)
SCALED = (
    "scaled = torch.autograd.grad(scaler.scale(loss), list(model.parameters()), create_graph=True)"
)
NORM = "norm = torch.cat([g.flatten() for g in scaled]).norm() / scaler.get_scale()"
BACKWARD, RETURN = (
    "scaler.scale(loss + norm * weight).backward()",
    "if not loss.isfinite():\n    return",
)
SCALE_AS_FIRST = {
    SCALED: SCALED.replace("scaler.scale(loss)", "loss").replace("create", FIRST),
    NORM: "norm = sum((g / scaler.get_scale()).pow(2).sum() for g in scaled).sqrt()",
}
RIGHT = {
    "norm, then divides": plain,
    "scale as first gradient": edited(plain, SCALE_AS_FIRST),
    "early return, smaller scale": edited(plain, {BACKWARD: f"{RETURN} {SMALLER}\n{BACKWARD}"}),
}
WRONG = {
    "steps by hand": (
        edited(plain, {"scaler.step(optimizer)": "optimizer.step()"}),
        "unscales, own step",
    ),
    "no update": (
        edited(plain, {"scaler.update()": "pass", "scaler.unscale_(optimizer)": "pass"}),
        "no update",
    ),
    "norm in a detached list": (
        edited(plain, {NORM: NORM.replace("g.flatten()", "g.detach().flatten()")}),
        "detached",
    ),
    "not divided": (
        edited(plain, {NORM: NORM.replace(" / scaler.get_scale()", "")}),
        "norm of scaled gradients",
    ),
    "square, divided once": (
        edited(plain, {NORM: NORM.replace(".norm()", ".square().sum()")}),
        None,
    ),
    "leaves after the second pass": (
        edited(plain, {"scaler.unscale_(optimizer)": "if not norm.isfinite():\n    return"}),
        "no update when skipped",
    ),
    "early return": (edited(plain, {BACKWARD: f"{RETURN}\n{BACKWARD}"}), "no update when skipped"),
}
