# EXPECTED: baddbmm and exp, which overflow next to a mask's -inf; not the softmax and the division
# after them.
import torch
from torch import nn

from tests.cases.tools import first_nonfinite

torch.manual_seed(0)
weight = nn.Parameter(torch.randn(2, 8, 8) * 200)
mask = torch.full((8, 8), float("-inf")).triu(1).half().expand(2, 8, 8)


def attention():
    h = weight.half()
    torch.baddbmm(mask, h, h.transpose(1, 2)).softmax(-1).float().square().sum().backward()


print(first_nonfinite(attention))
scores = nn.Parameter(torch.tensor([[1.0, 200.0], [1.0, 2.0]]))


def by_hand():
    e = scores.masked_fill(torch.tensor([[True, False], [False, False]]), float("-inf")).exp()
    (e / e.sum(1, keepdim=True)).square().sum().backward()


print(first_nonfinite(by_hand))
