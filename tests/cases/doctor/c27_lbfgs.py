# EXPECTED: exit 0. LBFGS with several backward passes a step, until it has converged.
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1)).double()
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.8, max_iter=6)
x = torch.linspace(-3, 3, 64, dtype=torch.float64)[:, None]
for step in range(40):

    def closure():
        optimizer.zero_grad()
        loss = (model(x) - x.sin()).square().mean()
        loss.backward()
        return loss

    loss = optimizer.step(closure)
print(loss.item())
