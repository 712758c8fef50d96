"""Answers to `bf16_updates`, written without a look at its table of mistakes."""

import copy

import torch
from torch.func import functional_call
from torch.nn import functional as F

from amp_course.checking import edited
from amp_course.debugging.clinic.causes import cause


def under_autocast(model, batches, lr):
    cause("updates-vanish")
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    losses = []
    for x, y in batches:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(x)
        loss = F.cross_entropy(logits.float(), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def master_copies(model, batches, lr):
    cause("updates-vanish")
    model.bfloat16()
    masters = [p.detach().float() for p in model.parameters()]
    losses = []
    for x, y in batches:
        model.zero_grad()
        loss = F.cross_entropy(model(x.bfloat16()).float(), y)
        loss.backward()
        with torch.no_grad():
            for p, master in zip(model.parameters(), masters, strict=True):
                master -= lr * p.grad.float()
                p.copy_(master)
        losses.append(loss.item())
    for p, master in zip(model.parameters(), masters, strict=True):
        p.data = master
    return losses


def casts_by_hand(model, batches, lr):
    cause("updates-vanish")
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    losses = []
    for x, y in batches:
        weights = {name: p.to(torch.bfloat16) for name, p in model.named_parameters()}
        loss = F.cross_entropy(functional_call(model, weights, (x.to(torch.bfloat16),)), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def a_copy_that_follows(model, batches, lr):
    cause("updates-vanish")
    low = copy.deepcopy(model).to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    losses = []
    for x, y in batches:
        low.zero_grad()
        loss = F.cross_entropy(low(x.to(torch.bfloat16)).float(), y)
        loss.backward()
        for p, q in zip(model.parameters(), low.parameters(), strict=True):
            p.grad = q.grad.float()
        optimizer.step()
        low.load_state_dict(model.state_dict())
        losses.append(loss.item())
    return losses


def with_a_scaler(model, batches, lr):
    cause("updates-vanish")
    model.to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    scaler = torch.amp.GradScaler("cpu")
    losses = []
    for x, y in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x.to(torch.bfloat16)).float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses


CAUSE, OPTIMIZER = (
    'cause("updates-vanish")',
    "optimizer = torch.optim.SGD(model.parameters(), lr=lr)",
)
FOLLOW, BACK, ROUND = (
    "low.load_state_dict(model.state_dict())",
    "p.data = master",
    "p.copy_(master)",
)
REGION = 'with torch.autocast("cpu", torch.bfloat16):'
RIGHT = {
    "under autocast": under_autocast,
    "master copies": master_copies,
    "casts by hand": casts_by_hand,
    "a copy that follows": a_copy_that_follows,
}
WRONG = {
    "another cause": (edited(under_autocast, {CAUSE: 'cause("rate-too-high")'}), None),
    "no cause": (edited(under_autocast, {CAUSE: "pass"}), None),
    "an unknown cause": (edited(under_autocast, {CAUSE: 'cause("bad luck")'}), None),
    "a scaler on bf16 weights": (with_a_scaler, "unchanged"),
    "bf16 weights under autocast": (
        edited(under_autocast, {OPTIMIZER: f"model.bfloat16()\n{OPTIMIZER}"}),
        "unchanged",
    ),
    "rounds the master": (
        edited(master_copies, {ROUND: f"{ROUND}\nmaster.copy_(p)"}),
        "back to fp32 at the end",
    ),
    "a copy left behind": (
        edited(a_copy_that_follows, {FOLLOW: "pass"}),
        "a copy that never learns",
    ),
    "masters not put back": (edited(master_copies, {BACK: "pass"}), None),
    "no step": (edited(under_autocast, {"optimizer.step()": "pass"}), "trains a copy"),
    "never clears": (edited(under_autocast, {"optimizer.zero_grad()": "pass"}), "never clears"),
    "Adam": (edited(under_autocast, {OPTIMIZER: OPTIMIZER.replace("SGD", "Adam")}), None),
    "no autocast": (edited(under_autocast, {REGION: "if True:"}), "all in fp32"),
    "to bf16 and back": (
        edited(
            under_autocast,
            {"optimizer.zero_grad()": "model.bfloat16().float()\noptimizer.zero_grad()"},
        ),
        "rounds the weights for each batch",
    ),
}
SIBLINGS = {
    "one region around all": (
        edited(
            under_autocast,
            {
                OPTIMIZER: f"{OPTIMIZER}\nregion = {REGION[5:-1]}\nregion.__enter__()",
                REGION: "if True:",
                "return torch.stack(losses)": "region.__exit__(None, None, None)\n"
                "return torch.stack(losses)",
            },
        ),
        "a copy that never learns",
        "After each update, copy",
    ),
}
