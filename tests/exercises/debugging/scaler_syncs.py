"""Answers to `scaler_syncs`, written without a look at its table of mistakes."""

import torch
from torch.nn import functional as F

from amp_course.checking import edited
from amp_course.debugging.clinic.causes import cause


def fused(model, batches, scaler):
    cause("host-waits")
    sgd = torch.optim.SGD(model.parameters(), lr=0.5, fused=True)
    total = []
    for x, y in batches:
        sgd.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(sgd)
        scaler.update()
        total.append(loss.detach())
    return [one.item() for one in total]


CAUSE, SGD = 'cause("host-waits")', "sgd = torch.optim.SGD(model.parameters(), lr=0.5, fused=True)"
LOSS, BACKWARD = "loss = F.cross_entropy(model(x), y)", "scaler.scale(loss).backward()"
STEP, KEEP, RETURN = (
    "scaler.step(sgd)",
    "total.append(loss.detach())",
    "return [one.item() for one in total]",
)
UNFUSED = SGD.replace("fused=True", "foreach=True")
WHERE = """
scaler.unscale_(sgd)
fine = torch.stack([p.grad.isfinite().all() for p in model.parameters()]).all()
for p in model.parameters():
    p.grad = torch.where(fine, p.grad, 0.0)
sgd.step()"""
RIGHT = {
    "fused": fused,
    "nll_loss of log_softmax": edited(
        fused, {LOSS: "loss = F.nll_loss(F.log_softmax(model(x), dim=-1), y)"}
    ),
    "a loss in fp16": edited(
        fused, {LOSS: "loss = model(x)", BACKWARD: f"loss = F.cross_entropy(loss, y)\n{BACKWARD}"}
    ),
    "unscaled before": edited(fused, {STEP: f"scaler.unscale_(sgd)\n{STEP}"}),
    "a tensor": edited(fused, {RETURN: "return torch.stack(total)"}),
    "on the device by torch.where": edited(fused, {SGD: UNFUSED, STEP: WHERE}),
    "prints the scale at the end": edited(
        fused, {RETURN: f"print(f'{{scaler.get_scale():.0f}}', end='')\n{RETURN}"}
    ),
}
WRONG = {
    "another cause": (edited(fused, {CAUSE: 'cause("rate-too-high")'}), None),
    "no cause": (edited(fused, {CAUSE: "pass"}), None),
    "foreach": (edited(fused, {SGD: UNFUSED}), "unchanged"),
    "a value for the log": (edited(fused, {KEEP: "total.append(torch.tensor(float(loss)))"}), None),
    "text for the log": (edited(fused, {KEEP: f"{KEEP}\nstr(loss)"}), None),
    "every other loss": (
        edited(fused, {KEEP: f"{KEEP}\nif len(total) % 2: loss.item()"}),
        "reads each loss",
    ),
    "never clears": (edited(fused, {"sgd.zero_grad()": "pass"}), "never clears"),
    "the best so far": (edited(fused, {KEEP: f"{KEEP}\nmin(total)"}), "tests a tensor"),
    "inf becomes 0": (
        edited(
            fused,
            {
                SGD: UNFUSED,
                STEP: "scaler.unscale_(sgd)\nfor p in model.parameters(): p.grad.nan_to_num_(0, "
                "0, 0)\nsgd.step()",
            },
        ),
        "zeroes what overflows",
    ),
    "a fixed scale": (edited(fused, {"scaler.update()": "scaler.update(1024.0)"}), None),
}
