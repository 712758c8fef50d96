# EXPECTED: exit 0. Gradients are divided by the scale by hand, then clipped, and stepped only if
# finite.
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
x = torch.randn(512, 20)
y = (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()
for step in range(60):
    i = torch.randint(0, 512, (32,))
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = F.cross_entropy(model(x[i]), y[i])
    scaler.scale(loss).backward()
    inverse = 1.0 / scaler.get_scale()
    for p in model.parameters():
        p.grad.mul_(inverse)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.3)
    if torch.isfinite(norm):
        optimizer.step()
    else:
        scaler.update(scaler.get_scale() / 2)
print(loss.item())
