# fault: infinite-derivative
"""Learns an embedding that keeps distances (multidimensional scaling)."""

import torch
from torch import nn


def pairwise_distance(z):
    squared = (z[:, None] - z[None]).square().sum(-1)
    return torch.where(squared > 0, squared.sqrt(), torch.zeros_like(squared))


def stress(z, target):
    return (pairwise_distance(z) - target).square().mean()


torch.manual_seed(0)
points = torch.randn(200, 10) * torch.linspace(2, 0.1, 10)
net = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
for step in range(50):
    batch = points[torch.randperm(200)[:40]]
    with torch.no_grad():
        target = pairwise_distance(batch)
    loss = stress(net(batch), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(f"step {step}: stress {loss.item():.4f}")
