# EXPECTED: exit 0. It traces and scripts the model after each epoch.
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(512, 20)
y = (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()
for epoch in range(4):
    model.train()
    for i in torch.randperm(512).split(32):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x[i]), y[i])
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        torch.jit.trace(model, x[:4]).save("traced.pt")
        torch.jit.script(model).save("scripted.pt")
print(loss.item())
