# EXPECTED: it runs: a step with torch.func.vmap, under which no tensor's value can be asked for.
import torch
from torch import nn

from tests.cases.tools import first_nonfinite

model, x = nn.Linear(3, 3), torch.randn(2, 3)
weights = {name: weight.detach() for name, weight in model.named_parameters()}


def loss(p, x):
    return torch.func.functional_call(model, p, (x,)).square().sum()


def step():
    grads = torch.func.vmap(torch.func.grad(loss), (None, 0))(weights, x)
    for name, weight in model.named_parameters():
        weight.grad = grads[name].mean(0)


step()
print(first_nonfinite(step, model=model))
