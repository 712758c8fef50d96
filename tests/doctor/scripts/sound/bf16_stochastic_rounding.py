"""Weights in bf16 alone. Rounding up or down at random keeps small updates alive on average."""

import torch
from torch import nn


def stochastic_round_(target, value):
    """Write the float32 `value` to the bfloat16 `target`, rounded at random."""
    bits = value.view(torch.int32)
    bits = (bits + torch.randint_like(bits, 1 << 16)) & -65536
    target.copy_(bits.view(torch.float32))


class StochasticSGD(torch.optim.Optimizer):
    def __init__(self, params, lr, momentum=0.0):
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                velocity = self.state[p].setdefault(
                    "velocity", torch.zeros_like(p, dtype=torch.float32)
                )
                velocity.mul_(group["momentum"]).add_(p.grad.float())
                stochastic_round_(p, p.float() - group["lr"] * velocity)
        return loss


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1)).to(torch.bfloat16)
optimizer = StochasticSGD(model.parameters(), lr=0.02, momentum=0.9)
w = torch.randn(16, 1) / 4
for step in range(150):
    x = torch.randn(64, 16)
    y = x @ w
    loss = nn.functional.mse_loss(model(x.bfloat16()).float(), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 25 == 0:
        print(step, f"{loss.item():.4f}")
