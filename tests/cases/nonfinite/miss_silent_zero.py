# EXPECTED: pow's inf is not "without harm": rsqrt(inf) is 0, and output and gradients of this norm
# in fp16 are all 0.
import torch
from torch import nn

from tests.cases.tools import first_nonfinite


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5).to(x.dtype)


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), Norm(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
x = torch.randn(4, 8) * 1e3


def step():
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = (model(x).float() - 1).square().mean()
    loss.backward()
    optimizer.step()
    return loss


print(first_nonfinite(step, model=model, optimizer=optimizer))
