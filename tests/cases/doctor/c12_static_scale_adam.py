# EXPECTED: exit 0. A static loss scale: Adam does not care for the size of gradients, its eps is
# scaled too.
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
SCALE = 1024.0
model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, eps=1e-8 * SCALE)
x = torch.randn(512, 20)
y = (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()
for step in range(80):
    i = torch.randint(0, 512, (32,))
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = F.cross_entropy(model(x[i]), y[i])
    (loss * SCALE).backward()
    if all(p.grad.isfinite().all() for p in model.parameters()):
        optimizer.step()
print(loss.item())
