# odd: opens a data file that is missing
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent


def load(path):
    with open(path) as f:
        rows = [[float(v) for v in line.split(",")] for line in f]
    table = torch.tensor(rows)
    return table[:, :-1], table[:, -1:]


x, y = load(HERE / "data" / "train.csv")
model = torch.nn.Linear(x.shape[1], 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(100):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
