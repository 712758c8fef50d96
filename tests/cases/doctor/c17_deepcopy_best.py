# EXPECTED: exit 0. It keeps deep copies of the model and pickles one.
import copy
import pickle

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(512, 20)
y = (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()
best, best_loss = None, float("inf")
for epoch in range(5):
    model.train()
    for i in torch.randperm(512).split(32):
        optimizer.zero_grad()
        F.cross_entropy(model(x[i]), y[i]).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        loss = F.cross_entropy(model(x), y).item()
    if loss < best_loss:
        best, best_loss = copy.deepcopy(model), loss
    copy.deepcopy(best).half()
print(len(pickle.dumps(best)), best_loss)
