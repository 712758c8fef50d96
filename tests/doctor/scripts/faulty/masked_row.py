# fault: masked-row
"""Pools a set of points by attention; sets have up to eight points."""

import torch
from torch import nn


class AttentionPool(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.query = nn.Parameter(torch.randn(width) / width**0.5)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)

    def forward(self, points, present):
        scores = self.key(points) @ self.query
        scores = scores.masked_fill(~present, float("-inf"))
        return (scores.softmax(1).unsqueeze(2) * self.value(points)).sum(1)


def draw(n):
    points = torch.randn(n, 8, 16)
    count = torch.randint(0, 9, (n,))
    present = torch.arange(8) < count[:, None]
    total = (points[..., 0] * present).sum(1)
    return points, present, (total > 0).long()


def main():
    torch.manual_seed(0)
    pool = AttentionPool(16)
    head = nn.Linear(16, 2)
    optimizer = torch.optim.Adam([*pool.parameters(), *head.parameters()], lr=1e-2)
    for step in range(40):
        points, present, label = draw(32)
        loss = nn.functional.cross_entropy(head(pool(points, present)), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            print(step, loss.item())


if __name__ == "__main__":
    main()
