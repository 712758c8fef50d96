# EXPECTED: no harm, twice: an output holds -inf on purpose (an action mask, a padded vocabulary).
import torch
from torch import nn

from tests.cases.tools import first_nonfinite


class Policy(nn.Module):
    def __init__(self, assign):
        super().__init__()
        self.l = nn.Linear(4, 6)
        self.assign = assign

    def forward(self, x):
        z = self.l(x)
        if self.assign:
            z[:, 4:] = float("-inf")
            return z
        return z.masked_fill(torch.arange(6) >= 4, float("-inf"))


def trial(assign):
    torch.manual_seed(0)
    model = Policy(assign)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x, y = torch.randn(5, 4), torch.randint(0, 4, (5,))

    def step():
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    print(first_nonfinite(step, model=model, optimizer=optimizer), step().item())


trial(False)
trial(True)
