"""Answers to `anomaly_warmup`, written without a look at its table of mistakes."""

import torch
from torch.nn import functional as F

from amp_course.checking import edited
from amp_course.debugging.clinic.causes import cause


def plain(model, batches, scaler):
    cause("anomaly-mode-meets-scaler")
    sgd = torch.optim.SGD(model.parameters(), 0.01)
    losses = []
    for x, y in batches:
        with torch.autocast("cpu", torch.float16):
            loss = F.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(sgd)
        scaler.step(sgd)
        scaler.update()
        sgd.zero_grad()
        losses.append(loss.detach())
    return torch.stack(losses)


CAUSE = 'cause("anomaly-mode-meets-scaler")'
BACKWARD, UNSCALE, UPDATE = (
    "scaler.scale(loss).backward()",
    "scaler.unscale_(sgd)",
    "scaler.update()",
)
STEP, LOOP = "scaler.step(sgd)", "for x, y in batches:"
OPTIMIZER = "sgd = torch.optim.SGD(model.parameters(), 0.01)"
HALVES = (
    "if any(not p.grad.isfinite().all() for p in model.parameters()): "
    "scaler.update(scaler.get_scale() / 2)"
)
RIGHT = {
    "no anomaly mode": plain,
    "no check for NaN": edited(
        plain, {BACKWARD: f"with torch.autograd.detect_anomaly(check_nan=False):\n    {BACKWARD}"}
    ),
    "switched off": edited(
        plain, {BACKWARD: f"with torch.autograd.set_detect_anomaly(False):\n    {BACKWARD}"}
    ),
    "scale halved by hand": edited(plain, {UPDATE: f"{HALVES}\nelse: {UPDATE}"}),
}
WRONG = {
    "another cause": (edited(plain, {CAUSE: 'cause("beyond-fp16")'}), None),
    "no cause": (edited(plain, {CAUSE: "pass"}), None),
    "two causes": (edited(plain, {CAUSE: f'{CAUSE}\ncause("division-by-zero")'}), None),
    "around the loop": (
        edited(plain, {LOOP: f"torch.autograd.set_detect_anomaly(True)\n{LOOP}"}),
        "unchanged",
    ),
    "zeros for inf": (
        edited(plain, {UNSCALE: "for p in model.parameters(): p.grad.nan_to_num_(0, 0, 0)"}),
        "catches the error",
    ),
    "never clears": (edited(plain, {"sgd.zero_grad()": "pass"}), "never clears"),
    "another rate": (edited(plain, {OPTIMIZER: OPTIMIZER.replace("0.01", "0.001")}), None),
    "clipped": (
        edited(
            plain,
            {UNSCALE: f"{UNSCALE}\ntorch.nn.utils.clip_grad_value_(model.parameters(), 0.01)"},
        ),
        None,
    ),
    "scaled loss returned": (
        edited(plain, {BACKWARD: "loss = scaler.scale(loss)\nloss.backward()"}),
        None,
    ),
    "an update before the first step": (
        edited(
            plain, {OPTIMIZER: f"{OPTIMIZER}\nscaler.scale(torch.ones(()))\nscaler.update(64.0)"}
        ),
        "sets the scale",
    ),
}
SIBLINGS = {
    "no scaler, in anomaly mode": (
        edited(
            plain,
            {
                BACKWARD: "with torch.autograd.detect_anomaly():\n    loss.backward()",
                **{UNSCALE: "pass", STEP: "sgd.step()", UPDATE: "pass"},
            },
        ),
        "a lower scale",
        "a scaler of your own",
    ),
    "leaves the batch out": (
        edited(
            plain,
            {
                UNSCALE: "if not all(p.grad.isfinite().all() for p in model.parameters()):\n"
                "    losses.append(loss.detach())\n    sgd.zero_grad()\n    continue"
            },
        ),
        "catches the error",
        "the error is caught",
    ),
}
