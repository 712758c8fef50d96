# EXPECTED: still-scaled, with the line of optimizer.step() in this file.
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
x, y = torch.randn(512, 20), torch.randint(0, 4, (512,))
for step in range(60):
    for micro in range(4):
        i = torch.randint(0, 512, (32,))
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(x[i]), y[i]) / 4
        scaler.scale(loss).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
