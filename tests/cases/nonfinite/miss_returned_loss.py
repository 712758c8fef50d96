# EXPECTED: log made the NaN that an evaluation step returns.
import torch
from torch import nn

from tests.cases.tools import first_nonfinite

model = nn.Linear(3, 3)


def evaluate():
    with torch.no_grad():
        return (model(torch.ones(2, 3)) * 0 - 1).log().mean()


print(first_nonfinite(evaluate, model=model))
