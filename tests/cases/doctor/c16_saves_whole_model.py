# EXPECTED: exit 0. It pickles the whole model after each epoch.
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(512, 20)
y = (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()
for epoch in range(3):
    for i in torch.randperm(512).split(32):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x[i]), y[i])
        loss.backward()
        optimizer.step()
    torch.save(model, f"model-{epoch}.pth")
print(loss.item())
