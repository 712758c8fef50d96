# EXPECTED: fp16-without-scaler: torch.autograd.grad runs, and its result underflows to 0.
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
    with torch.autocast("cpu", dtype=torch.float16):
        loss = cross_entropy(model(x), y) * 1e-7
    for p, g in zip(model.parameters(), torch.autograd.grad(loss, list(model.parameters()))):
        p.grad = g * 1e7
    optimizer.step()
    optimizer.zero_grad()


print(audit(step, model=model, optimizer=optimizer, batches=batches))
