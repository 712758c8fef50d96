# fault: depends-on-scale
"""Two losses of one optimizer are scaled by two scalers, and one of them steps it."""

import torch
from torch import Tensor, nn

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
scaler, other = torch.amp.GradScaler("cpu", init_scale=2.0**10), torch.amp.GradScaler("cpu")


def loss_for(target: float) -> Tensor:
    with torch.autocast("cpu", dtype=torch.float16):
        return nn.functional.mse_loss(model(torch.randn(16, 8)), torch.full((16, 1), target))


for _ in range(20):
    optimizer.zero_grad()
    scaler.scale(loss_for(1.0)).backward()
    other.scale(loss_for(0.0)).backward()
    scaler.step(optimizer)
    scaler.update()
