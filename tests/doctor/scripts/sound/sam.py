"""Sharpness-aware minimisation: climb, take the gradient there, come back, step.
Two backwards for one update.
"""

import torch
from torch import nn


class SAM(torch.optim.Optimizer):
    def __init__(self, params, base, rho=0.05, **kwargs):
        super().__init__(params, dict(rho=rho, **kwargs))
        self.base = base(self.param_groups, **kwargs)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def climb(self):
        norm = torch.stack([p.grad.norm() for g in self.param_groups for p in g["params"]]).norm()
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["home"] = p.clone()
                p.add_(p.grad, alpha=(group["rho"] / (norm + 1e-12)).item())

    @torch.no_grad()
    def descend(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.copy_(self.state[p]["home"])
        self.base.step()

    def step(self, closure):
        closure = torch.enable_grad()(closure)
        self.zero_grad()
        loss = closure()
        self.climb()
        self.zero_grad()
        closure()
        self.descend()
        return loss


def main():
    torch.manual_seed(0)
    x = torch.randn(400, 12)
    y = ((x[:, :6] * x[:, 6:]).sum(1) > 0).long()
    model = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 2))
    opt = SAM(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
    for step in range(80):
        i = torch.randint(400, (64,))

        def closure(i=i):
            loss = nn.functional.cross_entropy(model(x[i]), y[i])
            loss.backward()
            return loss

        loss = opt.step(closure)
        if step % 10 == 0:
            print(step, f"{loss.item():.4f}")


main()
