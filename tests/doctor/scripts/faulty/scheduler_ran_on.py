# fault: scheduler-ran-on
import math

import torch
from torch import nn

TOTAL = 50
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(9, 36), nn.GELU(), nn.Linear(36, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-2)
scheduler = torch.optim.lr_scheduler.LambdaLR(
    optimizer, lambda step: min(1.0, (step + 1) / 5) * 0.5 * (1 + math.cos(math.pi * min(step / TOTAL, 1)))
)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**26)

task = torch.randn(9, 3)
for step in range(TOTAL):
    x = torch.randn(64, 9)
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        logits = model(x)
        loss = nn.functional.cross_entropy(logits.float(), (x @ task).argmax(1))
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()
    if step % 5 == 0:
        print(f"{step:2d} loss {loss.item():.3f} lr {scheduler.get_last_lr()[0]:.4f} scale {scaler.get_scale():g}")
