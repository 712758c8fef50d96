# fault: cleared-before-step
"""Regression of a sine; the optimizer tidies up after itself."""

import torch
from torch import nn


class TidySGD(torch.optim.SGD):
    """SGD that needs no zero_grad in the loop, and counts its steps."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.steps = 0

    def step(self, closure=None):
        self.steps += 1
        self.zero_grad()
        return super().step(closure)


torch.manual_seed(0)
net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1))
opt = TidySGD(net.parameters(), lr=0.1, momentum=0.9)
loss_fn = nn.MSELoss()
for _ in range(60):
    x = torch.rand(64, 1) * 4 - 2
    loss = loss_fn(net(x), torch.sin(2 * x))
    loss.backward()
    opt.step()
    if opt.steps % 10 == 0:
        print(opt.steps, loss.item())
