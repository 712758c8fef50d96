# EXPECTED: mean-of-means: what counts are labels != ignore_index, and 3 of them weigh as much as 24
# (transformers#34191).
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tests.cases.tools import audit

torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batches = []
for valid in (3, 24, 20, 4):
    y = torch.randint(5, (24,))
    y[valid:] = -100
    batches.append((torch.randn(24, 20), y))


def step(x, y, last):
    (cross_entropy(model(x), y, ignore_index=-100) / 2).backward()
    if last:
        optimizer.step()
        optimizer.zero_grad()


print(
    audit(
        step,
        model=model,
        optimizer=optimizer,
        batches=batches,
        accumulate=2,
        loss=lambda m, x, y: cross_entropy(m(x), y),
    )
)
