# fault: nan-in-data
"""Predicts the yield from a table of measurements."""

import csv
import io
import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


def write_table():
    rng = random.Random(0)
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(["rain", "sun", "soil", "yield"])
    for row in range(480):
        rain, sun, soil = rng.gauss(0, 1), rng.gauss(0, 1), rng.gauss(0, 1)
        writer.writerow(["" if row == 211 else rain, sun, soil, 0.5 * rain + 0.3 * sun * soil])
    return out.getvalue()


class Table(Dataset):
    def __init__(self, text):
        rows = list(csv.DictReader(io.StringIO(text)))
        values = [[float(v) if v else float("nan") for v in row.values()] for row in rows]
        self.values = torch.tensor(values)

    def __len__(self):
        return len(self.values)

    def __getitem__(self, i):
        return self.values[i, :3], self.values[i, 3:]


torch.manual_seed(0)
loader = DataLoader(Table(write_table()), batch_size=16)
net = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
for epoch in range(2):
    for i, (x, y) in enumerate(loader):
        loss = nn.functional.mse_loss(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if i % 6 == 0:
            print(epoch, i, loss.item())
