# EXPECTED: exit 0. `relu` and `mean` after the region are on no fp32 list of autocast's.
import torch
from torch import nn

torch.manual_seed(0)
D = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
optimizer = torch.optim.Adam(D.parameters(), lr=5e-4, betas=(0.0, 0.9))
scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
for step in range(60):
    real, fake = torch.randn(64, 2) * 0.2 + 1, torch.randn(64, 2)
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        on_fake, on_real = D(fake), D(real)
    loss = (1 + on_fake).relu().mean() + (1 - on_real).relu().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
print(loss.item())
