# EXPECTED: no fault: the clip is in a hook that torch has for it.
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tests.cases.tools import audit

torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batches = [(10 * torch.randn(16, 20), torch.randint(5, (16,))) for _ in range(4)]


def clip(optimizer, args, kwargs):
    nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], 0.3)


optimizer.register_step_pre_hook(clip)


def step(x, y):
    optimizer.zero_grad()
    cross_entropy(model(x), y).backward()
    optimizer.step()


print(audit(step, model=model, optimizer=optimizer, batches=batches, max_norm=0.3))
before = torch.cat([p.detach().flatten().clone() for p in model.parameters()])
step(*batches[0])
print(
    "moved by lr times",
    float((torch.cat([p.detach().flatten() for p in model.parameters()]) - before).norm() / 0.1),
)
