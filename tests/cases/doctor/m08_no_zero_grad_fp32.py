# EXPECTED: never-cleared.
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
x = torch.randn(512, 20)
y = (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()
for step in range(60):
    i = torch.randint(0, 512, (32,))
    loss = F.cross_entropy(model(x[i]), y[i])
    loss.backward()
    optimizer.step()
print(loss.item())
