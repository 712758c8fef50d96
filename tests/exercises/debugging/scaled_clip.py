"""Answers to `scaled_clip`, written without a look at its table of mistakes."""

import torch
from torch.nn import functional as F

from amp_course.checking import edited
from amp_course.debugging.clinic.causes import cause


def on_scaled_gradients(model, batches):
    cause("clipped-while-scaled")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scaler = torch.amp.GradScaler("cpu")
    losses = []
    for x, y in batches:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), scaler.get_scale())
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.detach())
    return torch.stack(losses)


CLIP = "torch.nn.utils.clip_grad_norm_(model.parameters(), scaler.get_scale())"
CAUSE, BACKWARD = 'cause("clipped-while-scaled")', "scaler.scale(loss).backward()"
LOSS, SCALER = "loss = F.cross_entropy(model(x), y)", 'scaler = torch.amp.GradScaler("cpu")'
KEEP = "losses.append(loss.detach())"
UNSCALED = (
    "scaler.unscale_(optimizer)\ntorch.nn.utils.clip_grad_norm_(list(model.parameters()), 1.0)"
)
NLL = "loss = F.nll_loss(F.log_softmax(model(x), dim=-1), y)"
RIGHT = {
    "nll_loss of log_softmax": edited(on_scaled_gradients, {LOSS: NLL}),
    "a loss in fp16": edited(
        on_scaled_gradients,
        {LOSS: "loss = model(x)", BACKWARD: f"loss = F.cross_entropy(loss, y)\n{BACKWARD}"},
    ),
    "another scale": edited(
        on_scaled_gradients, {SCALER: 'scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)'}
    ),
    "limit times scale": on_scaled_gradients,
    "unscales": edited(on_scaled_gradients, {CLIP: UNSCALED}),
    "cause at the end": edited(on_scaled_gradients, {CAUSE: "pass", KEEP: f"{KEEP}\n{CAUSE}"}),
}
WRONG = {
    "another cause": (edited(on_scaled_gradients, {CAUSE: 'cause("rate-too-high")'}), None),
    "no cause": (edited(on_scaled_gradients, {CAUSE: "pass"}), None),
    "an unknown cause": (edited(on_scaled_gradients, {CAUSE: 'cause("bad luck")'}), None),
    "limit of 2": (
        edited(on_scaled_gradients, {CLIP: CLIP.replace("scaler.get", "2 * scaler.get")}),
        None,
    ),
    "always a norm of 1": (
        edited(
            on_scaled_gradients,
            {
                CLIP: "norm = sum(p.grad.square().sum() for p in model.parameters()).sqrt() / "
                "scaler.get_scale()\nfor p in model.parameters(): p.grad /= norm"
            },
        ),
        "always to max_norm",
    ),
    "65,536": (
        edited(on_scaled_gradients, {CLIP: CLIP.replace("scaler.get_scale()", "2.0**16")}),
        "the limit of one scale",
    ),
    "never clears": (
        edited(on_scaled_gradients, {"optimizer.zero_grad()": "pass"}),
        "never clears",
    ),
    "nll_loss, never clipped": (
        edited(on_scaled_gradients, {LOSS: NLL, CLIP: "pass"}),
        "no clipping",
    ),
    "divides by hand": (
        edited(
            on_scaled_gradients,
            {
                CLIP: "for p in model.parameters(): p.grad /= scaler.get_scale()\n"
                "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
            },
        ),
        "unscales by hand",
    ),
    "a scaler in the loop": (
        edited(on_scaled_gradients, {"optimizer.zero_grad()": f"{SCALER}\noptimizer.zero_grad()"}),
        "a new scaler for each batch",
    ),
    "no limit": (edited(on_scaled_gradients, {CLIP: "pass"}), "no clipping"),
}
