# EXPECTED: differs with its own iterator and with the clock; the same bits with random numbers of
# Python's, numpy's, or a generator's.
import random
import time

import numpy as np
import torch
from torch import nn

from tests.cases.tools import replay

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))
optimizer = torch.optim.Adam(model.parameters())
data = [(torch.randn(4), 0) for _ in range(16)]
batches = iter(torch.utils.data.DataLoader(data, 4, shuffle=True))
batch = (torch.randn(4, 4), torch.tensor([0, 1, 0, 1]))
generator = torch.Generator().manual_seed(3)


def train(x, y):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss


def fetching():
    return train(*next(batches))


def clocked(x, y):
    return train(x + time.time() % 1, y)


def drawing(x, y):
    return train(x + random.random() + np.random.rand(), y)


def generated(x, y):
    train(x + torch.randn(4, 4, generator=generator), y)  # and returns nothing


print("own iterator:", replay(fetching, model=model, optimizer=optimizer))
for step in (clocked, drawing, generated):
    print(f"{step.__name__}:", replay(step, batch, model=model, optimizer=optimizer))
