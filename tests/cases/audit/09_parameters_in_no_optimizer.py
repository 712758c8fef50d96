# EXPECTED: a finding or an observation that names 2.weight and 2.bias: they get gradients and are
# in no optimizer.
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tests.cases.tools import audit

torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 5))
optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)  # the head was forgotten
batches = [(torch.randn(16, 20), torch.randint(5, (16,))) for _ in range(4)]


def step(x, y):
    model.zero_grad()
    cross_entropy(model(x), y).backward()
    optimizer.step()


print(
    audit(
        step,
        model=model,
        optimizer=optimizer,
        batches=batches,
        loss=lambda m, x, y: cross_entropy(m(x), y),
    )
)
