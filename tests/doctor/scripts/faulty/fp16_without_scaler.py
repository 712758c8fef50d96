# fault: fp16-without-scaler
"""Denoising of faint spectra."""

import torch
from torch import nn


class Denoiser(nn.Module):
    def __init__(self, channels=96, width=64):
        super().__init__()
        self.down = nn.Linear(channels, width)
        self.up = nn.Linear(width, channels)

    @torch.autocast("cpu", dtype=torch.float16)
    def forward(self, x):
        return self.up(torch.relu(self.down(x)))


torch.manual_seed(0)
lines = torch.rand(3, 96) * 1e-4  # in physical units
model = Denoiser()
nn.init.zeros_(model.up.bias)
nn.init.zeros_(model.up.weight)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-6, eps=1e-12)
for step in range(60):
    clean = torch.rand(128, 3) @ lines
    noisy = clean + 1e-5 * torch.randn(128, 96)
    loss = nn.functional.mse_loss(model(noisy / 1e-4).float(), clean)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(f"{step:2d} {loss.item():.3e}")
