# EXPECTED: a finding or an observation that names 0.weight and 0.bias: a reentrant checkpoint cuts
# them off from the loss.
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from tests.cases.tools import audit

torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batches = [(torch.randn(16, 20), torch.randint(5, (16,))) for _ in range(4)]


def step(x, y):
    optimizer.zero_grad()
    cross_entropy(model[2](checkpoint(model[:2], x, use_reentrant=True)), y).backward()
    optimizer.step()


print(audit(step, model=model, optimizer=optimizer, batches=batches))
