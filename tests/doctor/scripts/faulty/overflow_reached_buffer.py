# fault: overflow-reached-buffer
"""Tells three kinds of signal apart by their energy in a fixed bank of filters."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.bank = nn.Linear(32, 24, bias=False).requires_grad_(False)
        self.norm = nn.BatchNorm1d(24)
        self.classify = nn.Linear(24, 3)

    def forward(self, x):
        return self.classify(self.norm(self.bank(x).square()))


def readings(n, wrong_gain=False):
    label = torch.randint(3, (n,))
    x = 80 + 25 * torch.randn(n, 32)
    x += 40 * nn.functional.one_hot(label, 3).repeat_interleave(11, 1)[:, :32]
    if wrong_gain:
        x[0] *= 4
    return x, label


def train(model, steps=40):
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-2)
    scaler = torch.amp.GradScaler("cpu")
    for step in range(steps):
        x, label = readings(64, wrong_gain=step == 7)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(x).float(), label)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if step % 5 == 0:
            print(f"step {step:2d} loss {loss.item():.4f}")


if __name__ == "__main__":
    torch.manual_seed(0)
    model = Net()
    train(model)
    model.eval()
    with torch.no_grad():
        x, label = readings(500)
        print("held out: accuracy", (model(x).argmax(1) == label).float().mean().item())
