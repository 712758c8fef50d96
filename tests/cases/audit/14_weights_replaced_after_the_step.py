# EXPECTED: a finding or an observation: after the step the weights are overwritten, and 0.1 % of
# the update is left.
import copy

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tests.cases.tools import audit

torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 5))
ema = copy.deepcopy(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batches = [(torch.randn(16, 20), torch.randint(5, (16,))) for _ in range(4)]


def step(x, y):
    optimizer.zero_grad()
    cross_entropy(model(x), y).backward()
    optimizer.step()
    with torch.no_grad():
        for a, b in zip(ema.parameters(), model.parameters()):
            a.lerp_(b, 0.001)
    model.load_state_dict(ema.state_dict())  # to draw a sample; the trained weights are lost


print(
    audit(
        step,
        model=model,
        optimizer=optimizer,
        batches=batches,
        loss=lambda m, x, y: cross_entropy(m(x), y),
    )
)
