"""Answers to `poisoned_norm`, written without a look at its table of mistakes."""

import copy

import torch
from torch.nn import functional as F

from amp_course.checking import edited
from amp_course.debugging.clinic.causes import cause


def by_scale(model, batches):
    cause("spoilt-buffer", "_to_copy")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    losses = []
    for x, y in batches:
        saved = {name: buffer.clone() for name, buffer in model.named_buffers()}
        scale = scaler.get_scale()
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if scaler.get_scale() < scale:
            model.load_state_dict(saved, strict=False)
        losses.append(loss.detach())
    return torch.stack(losses)


def tries_on_a_copy(model, batches):
    cause("spoilt-buffer", "_to_copy")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    losses = []
    for x, y in batches:
        with torch.autocast("cpu", dtype=torch.float16):
            with torch.no_grad():
                trial = F.cross_entropy(copy.deepcopy(model)(x), y)
            if not torch.isfinite(trial):
                losses.append(float("nan"))
                continue
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses


def goes_on_without(model, batches):
    cause("spoilt-buffer", "_to_copy")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    losses = []
    for x, y in batches:
        state = copy.deepcopy(model.state_dict())
        with torch.autocast("cpu", torch.half):
            loss = F.cross_entropy(model(x), y)
        losses.append(loss.item())
        if loss != loss:
            model.load_state_dict(state)
            continue
        model.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return losses


NAMED = 'cause("spoilt-buffer", "_to_copy")'
SAVE = "saved = {name: buffer.clone() for name, buffer in model.named_buffers()}"
STATE = "state = copy.deepcopy(model.state_dict())"
MOMENTUM = "for m in model.modules():\n    if hasattr(m, 'momentum'): m.momentum = 0.0"
LOSS = "loss = F.cross_entropy(model(x), y)"
HALF_LOSS = "loss = -F.log_softmax(model(x), -1)[range(len(y)), y].mean()"
SCALER = 'scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)'
RIGHT = {
    "nll_loss of log_softmax": edited(
        by_scale, {LOSS: "loss = F.nll_loss(F.log_softmax(model(x), dim=-1), y)"}
    ),
    "asks the scale": by_scale,
    "asks the scale, with a loss in fp16": edited(by_scale, {LOSS: HALF_LOSS}),
    "asks the loss, in fp16": edited(
        goes_on_without, {SCALER: SCALER.replace(", init_scale=1024.0", ""), LOSS: HALF_LOSS}
    ),
    "the cause's old name": edited(by_scale, {NAMED: 'cause("batch-norm-in-eval", "_to_copy")'}),
    "tries on a copy": tries_on_a_copy,
    "leaves the batch out": goes_on_without,
}
WRONG = {
    "another cause": (edited(by_scale, {NAMED: 'cause("beyond-fp16")'}), None),
    "no cause": (edited(by_scale, {NAMED: "pass"}), None),
    "an unknown cause": (edited(by_scale, {NAMED: 'cause("bad luck")'}), None),
    "a state without a copy": (
        edited(goes_on_without, {STATE: "state = model.state_dict()"}),
        "saves no copies",
    ),
    "no cause, and only the means": (
        edited(by_scale, {NAMED: "pass", SAVE: SAVE.replace("}", " if name.endswith('mean')}")}),
        None,
    ),
    "only the means": (
        edited(by_scale, {SAVE: SAVE.replace("}", " if name.endswith('mean')}")}),
        None,
    ),
    "batch norm's state": (
        edited(
            goes_on_without,
            {
                STATE: "norms = [m for m in model if hasattr(m, 'momentum')]\nstate = "
                "[copy.deepcopy(m.state_dict()) for m in norms]",
                "model.load_state_dict(state)": "[m.load_state_dict(one) for m, one in zip(norms, "
                "state, strict=True)]",
            },
        ),
        "batch norm's buffers only",
    ),
    "running statistics": (
        edited(by_scale, {SAVE: SAVE.replace("}", " if 'running' in name}")}),
        "running statistics only",
    ),
    "evaluation mode": (
        edited(by_scale, {SAVE: "saved = {}\nmodel.eval()"}),
        "in evaluation mode",
    ),
    "numbers for NaN": (
        edited(
            by_scale,
            {
                "model.load_state_dict(saved, strict=False)": "[b.nan_to_num_() for b in "
                "model.buffers()]"
            },
        ),
        "writes numbers for NaN",
    ),
    "gradients stay": (
        edited(by_scale, {"optimizer.zero_grad()": "pass"}),
        "never clears, and asks the scale",
    ),
    "a momentum of 0": (edited(by_scale, {NAMED: f"{NAMED}\n{MOMENTUM}"}), None),
    "no loss for a batch left out": (
        edited(tries_on_a_copy, {'losses.append(float("nan"))': "pass"}),
        None,
    ),
}
