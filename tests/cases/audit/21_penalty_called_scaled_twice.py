# EXPECTED: depends-on-scale, and not scaled-twice: a penalty from gradients that were never
# unscaled is linear in the scale.
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tests.cases.tools import audit

torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=4096.0)
batches = [(torch.randn(16, 20), torch.randint(5, (16,))) for _ in range(4)]


def step(x, y):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = cross_entropy(model(x), y)
    grads = torch.autograd.grad(scaler.scale(loss), list(model.parameters()), create_graph=True)
    penalty = sum(g.square().sum() for g in grads).sqrt()
    scaler.scale(loss + penalty).backward()
    scaler.step(optimizer)
    scaler.update()


print(audit(step, model=model, optimizer=optimizer, scaler=scaler, batches=batches).names)
