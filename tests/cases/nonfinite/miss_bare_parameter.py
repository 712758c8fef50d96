# EXPECTED: the NaN in `weight.grad` is found without model and optimizer, and is not "without
# harm".
import torch
from torch import nn

from tests.cases.tools import first_nonfinite

weight = nn.Parameter(torch.zeros(3))


def step():
    loss = (weight * weight).sqrt().sum()
    loss.backward()
    return loss


print(first_nonfinite(step))
