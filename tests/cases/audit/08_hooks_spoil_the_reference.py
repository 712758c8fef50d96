# EXPECTED: wrong-factor, 0.5: a hook on the parameters acts on the auditor's own reference, too.
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tests.cases.tools import audit

torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batches = [(torch.randn(16, 20), torch.randint(5, (16,))) for _ in range(4)]
for p in model.parameters():
    p.register_hook(lambda g: g / 2)


def step(x, y):
    optimizer.zero_grad()
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
