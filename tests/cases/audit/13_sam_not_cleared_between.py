# EXPECTED: a finding, or at least `clearing` not called right: the second backward adds to the
# first one's gradients.
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tests.cases.tools import audit

torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batches = [(torch.randn(16, 20), torch.randint(5, (16,))) for _ in range(4)]


def step(x, y):
    cross_entropy(model(x), y).backward()
    climb = [0.05 * p.grad for p in model.parameters()]
    with torch.no_grad():
        for p, e in zip(model.parameters(), climb):
            p.add_(e)
    cross_entropy(model(x), y).backward()  # optimizer.zero_grad() is missing before this
    with torch.no_grad():
        for p, e in zip(model.parameters(), climb):
            p.sub_(e)
    optimizer.step()
    optimizer.zero_grad()


print(
    audit(
        step,
        model=model,
        optimizer=optimizer,
        batches=batches,
        loss=lambda m, x, y: cross_entropy(m(x), y),
    )
)
