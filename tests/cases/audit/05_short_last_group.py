# EXPECTED: last-group-mean, as the docstring promises, although the batches passed make whole
# groups.
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tests.cases.tools import audit

torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batches = [(torch.randn(16, 20), torch.randint(5, (16,))) for _ in range(8)]


def step(x, y, last):
    (cross_entropy(model(x), y) / 4).backward()  # 4, also in a group of one to three
    if last:
        optimizer.step()
        optimizer.zero_grad()


print(
    audit(
        step,
        model=model,
        optimizer=optimizer,
        batches=batches,
        accumulate=4,
        loss=lambda m, x, y: cross_entropy(m(x), y),
    )
)
