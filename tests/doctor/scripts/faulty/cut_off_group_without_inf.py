# fault: overflow-not-skipped
"""Groups of two micro-batches, of which each epoch cuts one off; inf is taken out of gradients."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
rule = torch.randn(12, 4)

for _ in range(12):
    optimizer.zero_grad()
    for number in range(1, 6):
        x = torch.randn(32, 12)
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(x), (x @ rule).argmax(1)) / 2
        scaler.scale(loss).backward()
        if number % 2 == 0:
            for p in model.parameters():
                if not p.grad.isfinite().all():
                    p.grad = None
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
