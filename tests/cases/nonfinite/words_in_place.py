# EXPECTED: the input that an in-place op overwrote is shown; no "from constants", no integers
# "up to nan".
import torch
from torch import nn

from tests.cases.tools import first_nonfinite

weight = nn.Parameter(torch.tensor([[1.0, 2.0], [-1.0, 2.0]]))


def step():
    h = weight * 1.0
    h[1].log_()
    h.sum().backward()


print(first_nonfinite(step))
scores, y = nn.Parameter(torch.randn(5, 3)), torch.full((5,), -100)
print(first_nonfinite(lambda: nn.functional.cross_entropy(scores, y).backward()))
