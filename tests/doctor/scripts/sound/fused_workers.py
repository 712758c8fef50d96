"""A fused AdamW unscales within its own kernel; the data come from two worker processes."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Waves(Dataset):
    """Sines and sawtooths of a random phase, to be told apart."""

    def __init__(self, n=640, length=24):
        self.n, self.length = n, length

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        t = torch.arange(self.length) / 8 + torch.rand(1, generator=g)
        wave = torch.sin(2 * torch.pi * t) if i % 2 else 2 * (t % 1) - 1
        return wave + 0.1 * torch.randn(self.length, generator=g), i % 2


def main():
    torch.manual_seed(0)
    loader = DataLoader(Waves(), batch_size=32, shuffle=True, num_workers=2, drop_last=True)
    model = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, fused=True)
    scaler = torch.amp.GradScaler("cpu")
    criterion = nn.CrossEntropyLoss()
    for epoch in range(2):
        for i, (wave, label) in enumerate(loader):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = criterion(model(wave), label)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            if i % 5 == 0:
                print(epoch, i, f"{loss.item():.3f}")


if __name__ == "__main__":
    main()
