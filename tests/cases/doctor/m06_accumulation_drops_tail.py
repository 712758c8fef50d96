# EXPECTED: at least advice: 10 micro-batches in groups of 4, and the last two of each epoch are
# thrown away.
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(320, 20)
y = (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()
for epoch in range(30):
    optimizer.zero_grad()
    for k, i in enumerate(torch.arange(320).split(32)):
        (F.cross_entropy(model(x[i]), y[i]) / 4).backward()
        if (k + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
