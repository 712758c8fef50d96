# fault: weights-not-finite
"""A net that goes on from a checkpoint whose weights hold NaN."""

import io

import torch
from torch import nn


def net():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))


torch.manual_seed(0)
file = io.BytesIO()
state = net().state_dict()
state["0.weight"][0, 0] = float("nan")
torch.save(state, file)
file.seek(0)

model = net()
model.load_state_dict(torch.load(file))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(30):
    inputs, targets = torch.randn(16, 8), torch.randint(0, 3, (16,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs), targets).backward()
    optimizer.step()
