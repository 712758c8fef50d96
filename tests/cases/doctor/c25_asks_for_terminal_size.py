# EXPECTED: run from a terminal, it is examined, or the page says that it wants a terminal.
import os

import torch
from torch import nn
from torch.nn import functional as F

rows, columns = os.popen("stty size", "r").read().split()
torch.manual_seed(0)
model = nn.Linear(20, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(512, 20)
y = (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()
for step in range(60):
    i = torch.randint(0, 512, (32,))
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x[i]), y[i])
    loss.backward()
    optimizer.step()
    print("=" * min(step, int(columns) - 1), end="\r")
