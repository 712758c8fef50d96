# fault: left-in-evaluation-mode
"""Digits, with an evaluation every thirty steps."""

import torch
from sklearn.datasets import load_digits
from torch import nn


def accuracy(net, x, y):
    net.eval()
    with torch.no_grad():
        return (net(x).argmax(1) == y).float().mean().item()


torch.manual_seed(0)
digits = load_digits()
x, y = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 10))
optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
net.train()
for step in range(1, 121):
    pick = torch.randint(0, 1500, (64,))
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(net(x[pick]), y[pick])
    loss.backward()
    optimizer.step()
    if step % 30 == 0:
        print(step, loss.item(), accuracy(net, x[1500:], y[1500:]))
