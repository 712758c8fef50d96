# EXPECTED: exit 2 is fine, but no claim that it ended without training: torch.func.grad trains it.
import torch
from torch import nn
from torch.func import functional_call, grad

torch.manual_seed(0)
model = nn.Linear(10, 1)
params = {k: v.detach().clone() for k, v in model.named_parameters()}
x = torch.randn(64, 10)
y = x.sum(1, keepdim=True)
gradient = grad(lambda p: (functional_call(model, p, (x,)) - y).square().mean())
for step in range(100):
    g = gradient(params)
    params = {k: v - 0.05 * g[k] for k, v in params.items()}
print((functional_call(model, params, (x,)) - y).square().mean().item())
