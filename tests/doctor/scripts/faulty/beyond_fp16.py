# fault: beyond-fp16
"""A small residual net with RMS norms."""

import torch
from sklearn.datasets import load_digits
from torch import nn


class RMSNorm(nn.Module):
    def __init__(self, width, eps=1e-5):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x):
        return x * (x * x).mean(-1, keepdim=True).add(self.eps).rsqrt() * self.gain


class Net(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.stem = nn.Linear(64, width)
        self.norms = nn.ModuleList(RMSNorm(width) for _ in range(2))
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.head = nn.Linear(width, 10)

    def forward(self, pixels):
        h = self.stem(pixels)
        for norm, block in zip(self.norms, self.blocks, strict=True):
            h = block(norm(h)).relu()
        return self.head(h)


torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) * 64  # ten bits of grey
labels = torch.tensor(digits.target)
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for step in range(60):
    i = torch.randint(len(images), (64,))
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.cross_entropy(model(images[i]).float(), labels[i])
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 10 == 0:
        print(f"{step:2d} loss {loss.item():.4f} scale {scaler.get_scale():g}")
