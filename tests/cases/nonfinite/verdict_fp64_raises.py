# EXPECTED: no verdict on fp64, for this model merely cannot run in it (its forward makes an fp32
# state).
import torch
from torch import nn

from tests.cases.tools import compare_precisions


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRU(4, 8, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.cell(x, torch.zeros(1, x.shape[0], 8))[0][:, -1])


torch.manual_seed(0)
model, x, y = Net(), torch.randn(5, 7, 4), torch.randint(0, 3, (5,))
print(compare_precisions(lambda m, x, y: nn.functional.cross_entropy(m(x), y), model, (x, y)))
