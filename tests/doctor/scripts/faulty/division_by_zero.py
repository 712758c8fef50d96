# fault: division-by-zero
"""Classifies by cosine likeness to learnt directions."""

import torch
from torch import nn


class CosineHead(nn.Module):
    def __init__(self, width, classes, temperature=0.1):
        super().__init__()
        self.directions = nn.Parameter(torch.randn(classes, width))
        self.temperature = temperature

    def forward(self, h):
        h = h / h.norm(dim=1, keepdim=True)
        d = self.directions / self.directions.norm(dim=1, keepdim=True)
        return h @ d.T / self.temperature


torch.manual_seed(0)
counts = torch.poisson(torch.rand(640, 12) * 0.9)  # event counts; some rows have none at all
kind = counts.argmax(1)
net = nn.Sequential(nn.Linear(12, 32, bias=False), nn.ReLU(), CosineHead(32, 12))
optimizer = torch.optim.AdamW(net.parameters(), lr=5e-3)
for epoch in range(2):
    for n, (x, y) in enumerate(zip(counts.split(32), kind.split(32), strict=True)):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        if n % 3 == 0:
            print(f"epoch {epoch} batch {n} loss {loss.item():.4f}")
