# odd: trains for ever
import itertools

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(5, 24), nn.ReLU(), nn.Linear(24, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
counter = itertools.count()
while True:
    x = torch.randn(32, 5)
    loss = nn.functional.mse_loss(model(x), x.amax(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if (step := next(counter)) % 200 == 0:
        print(step, loss.item(), flush=True)
