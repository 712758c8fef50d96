# EXPECTED: exit 2 is fine (no optimizer), but no claim that it ran no backward pass: it runs 200.
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(10, 1)
x, y = torch.randn(64, 10), torch.randn(64, 1)
for i in range(200):
    model.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    for p in model.parameters():
        p.data.add_(p.grad, alpha=-0.01)
print("loss", loss.item())
