"""Answers to `never_cleared`, written without a look at its table of mistakes."""

import torch
from torch.nn import functional as F

from amp_course.checking import edited
from amp_course.debugging.clinic.causes import cause


def clears_at_the_end(model, batches, optimizer, scaler):
    cause("never-cleared")
    losses = []
    for x, y in batches:
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        model.zero_grad()
        losses.append(loss.detach())
    return torch.stack(losses)


def by_hand(model, batches, optimizer, scaler):
    cause("never-cleared")
    losses = []
    for x, y in batches:
        for p in model.parameters():
            p.grad = None
        with torch.autocast("cpu", torch.half):
            logits = model(x)
        loss = F.cross_entropy(logits.float(), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses


CAUSE, CLEAR, KEEP = 'cause("never-cleared")', "model.zero_grad()", "losses.append(loss.detach())"
STEP, BACKWARD = "scaler.step(optimizer)", "scaler.scale(loss).backward()"
LOSS = "loss = F.cross_entropy(model(x), y)"
RIGHT = {
    "at the end": clears_at_the_end,
    "by hand": by_hand,
    "to zeros": edited(clears_at_the_end, {CLEAR: "optimizer.zero_grad(set_to_none=False)"}),
    "a loss in fp16": edited(
        clears_at_the_end,
        {LOSS: "logits = model(x)", BACKWARD: f"loss = F.cross_entropy(logits, y)\n{BACKWARD}"},
    ),
    "right after the step": edited(
        clears_at_the_end, {STEP: f"{STEP}\noptimizer.zero_grad()", CLEAR: "pass"}
    ),
    "cause at the end": edited(clears_at_the_end, {CAUSE: "pass", KEEP: f"{KEEP}\n{CAUSE}"}),
}
WRONG = {
    "another cause": (edited(clears_at_the_end, {CAUSE: 'cause("beyond-fp16")'}), None),
    "no cause": (edited(clears_at_the_end, {CAUSE: "pass"}), None),
    "an unknown cause": (edited(clears_at_the_end, {CAUSE: 'cause("bad luck")'}), None),
    "the first layer only": (edited(clears_at_the_end, {CLEAR: "model[0].zero_grad()"}), None),
    "detached": (
        edited(clears_at_the_end, {CLEAR: "[p.grad.detach_() for p in model.parameters()]"}),
        "unchanged",
    ),
    "outside the loop": (
        edited(clears_at_the_end, {CLEAR: "pass", "losses = []": "losses = []\nmodel.zero_grad()"}),
        "unchanged",
    ),
    "times 0": (
        edited(clears_at_the_end, {CLEAR: "for p in model.parameters(): p.grad *= 0"}),
        "clears only after real steps",
    ),
    "zeros for inf and NaN": (
        edited(
            clears_at_the_end, {CLEAR: "for p in model.parameters(): p.grad.nan_to_num_(0, 0, 0)"}
        ),
        "clears only after skipped steps",
    ),
    "skips by hand": (
        edited(
            clears_at_the_end,
            {BACKWARD: f"if not loss.isfinite():\n    {KEEP}\n    continue\n{BACKWARD}"},
        ),
        "leaves the batch out, and clears",
    ),
    "zeros in place before the step": (
        edited(clears_at_the_end, {STEP: f"for p in model.parameters(): p.grad.zero_()\n{STEP}"}),
        "zeros before the step",
    ),
    "unscales and steps": (
        edited(clears_at_the_end, {STEP: "scaler.unscale_(optimizer)\noptimizer.step()"}),
        "steps by hand",
    ),
    "a scaler for each batch, and no clearing": (
        edited(
            clears_at_the_end,
            {CLEAR: "pass", BACKWARD: f'scaler = torch.amp.GradScaler("cpu")\n{BACKWARD}'},
        ),
        None,
    ),
    "no losses": (edited(clears_at_the_end, {"return torch.stack(losses)": "pass"}), None),
}
