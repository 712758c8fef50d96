"""Blocks that are run again in backward (activation checkpointing),
dropout and batch norm within.
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Dropout(0.1)
        )
        self.back = nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.back(self.body(x))


class Net(nn.Module):
    def __init__(self, width=32, depth=3):
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(6, width), nn.BatchNorm1d(width))
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(x).squeeze(-1)


def main():
    torch.manual_seed(0)
    net = Net()
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    scaler = torch.amp.GradScaler(device="cpu")
    for step in range(60):
        x = torch.rand(64, 6) * 2 - 1
        y = torch.sin(3 * x[:, 0]) * x[:, 1] + x[:, 2]
        with torch.amp.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.mse_loss(net(x), y)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        opt.zero_grad()
        if step % 10 == 0:
            print(f"[{step}] {loss.item():.4f}")


if __name__ == "__main__":
    main()
