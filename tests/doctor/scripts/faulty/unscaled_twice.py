# fault: unscaled-twice
"""Logs the norm of the true gradients before each step."""

from dataclasses import dataclass, field

import torch
from torch import nn


@dataclass
class History:
    losses: list = field(default_factory=list)
    norms: list = field(default_factory=list)


def true_gradients(model, scale):
    for p in model.parameters():
        if p.grad is not None:
            p.grad.div_(scale)
            yield p.grad


def fit(model, optimizer, scaler, steps, draw):
    history = History()
    for _ in range(steps):
        x, y = draw()
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        history.norms.append(torch.stack([g.norm() for g in true_gradients(model, scaler.get_scale())]).norm().item())
        scaler.step(optimizer)
        scaler.update()
        history.losses.append(loss.item())
    return history


torch.manual_seed(0)
matrix = torch.randn(10, 3)


def draw():
    x = torch.randn(50, 10)
    return x, x @ matrix


net = nn.Sequential(nn.Linear(10, 30), nn.ReLU(), nn.Linear(30, 3))
history = fit(net, torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9), torch.amp.GradScaler("cpu"), 60, draw)
for i in range(0, 60, 10):
    print(i, f"loss {history.losses[i]:.3f} norm {history.norms[i]:.3f}")
