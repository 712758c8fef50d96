# EXPECTED: a finding or an observation: the step's rate is 0.1, the scheduler's 0.05.
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tests.cases.tools import audit

torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
batches = [(torch.randn(16, 20), torch.randint(5, (16,))) for _ in range(4)]


def step(x, y):
    for group in optimizer.param_groups:
        group["lr"] = 0.1
    optimizer.zero_grad()
    cross_entropy(model(x), y).backward()
    optimizer.step()
    scheduler.step()


print(audit(step, model=model, optimizer=optimizer, scheduler=scheduler, batches=batches))
