# fault: update-per-optimizer
"""An autoencoder whose halves have an optimizer each."""

import torch
from torch import nn


class Halves:
    def __init__(self):
        self.encoder = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 4))
        self.decoder = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 20))
        self.optimizers = [
            torch.optim.SGD(self.encoder.parameters(), lr=0.2, momentum=0.9),
            torch.optim.SGD(self.decoder.parameters(), lr=0.1, momentum=0.9),
        ]
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=5)

    def train_step(self, x):
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.mse_loss(self.decoder(self.encoder(x)), x)
        self.scaler.scale(loss).backward()
        for optimizer in self.optimizers:
            self.scaler.step(optimizer)
            self.scaler.update()
        return loss.item()


torch.manual_seed(0)
basis = torch.randn(4, 20)
halves = Halves()
for step in range(60):
    loss = halves.train_step(torch.randn(64, 4) @ basis / 2)
    if step % 6 == 0:
        print(f"step {step:2d} loss {loss:.4f} scale {halves.scaler.get_scale():g}")
