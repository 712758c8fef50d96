# EXPECTED: optimizer-of-old-weights, although `model.zero_grad()` clears the new head's gradients.
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model[2] = nn.Linear(32, 4)  # too late
x = torch.randn(512, 20)
y = (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()
for step in range(60):
    i = torch.randint(0, 512, (32,))
    model.zero_grad()
    loss = F.cross_entropy(model(x[i]), y[i])
    loss.backward()
    optimizer.step()
print(loss.item())
