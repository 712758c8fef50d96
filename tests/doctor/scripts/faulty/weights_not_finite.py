# fault: weights-not-finite
"""Starts from weights of unit variance."""

import torch
from torch import nn


@torch.no_grad()
def unit_variance_(model):
    """Every parameter to mean 0 and variance 1/fan-in."""
    for p in model.parameters():
        fan_in = p[0].numel() if p.ndim > 1 else p.numel()
        p.sub_(p.mean()).div_(p.std() * fan_in**0.5)
    return model


def build(width=32):
    model = nn.Sequential(nn.Linear(10, width), nn.ReLU(), nn.LayerNorm(width), nn.Linear(width, 2))
    return unit_variance_(model)


torch.manual_seed(0)
model = build()
sgd = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
for step in range(40):
    x = torch.randn(64, 10)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.cross_entropy(model(x), (x[:, 0] > x[:, 1]).long())
    sgd.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(sgd)
    scaler.update()
    if step % 5 == 0:
        print(step, loss.item(), scaler.get_scale())
