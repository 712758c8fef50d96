# EXPECTED: overflow-not-skipped: `nan_to_num` before the scaler looks, so no step is skipped and
# the scale never falls.
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
    scaler.scale(loss).backward()
    for p in model.parameters():
        torch.nan_to_num(p.grad, nan=0, posinf=1e5, neginf=-1e5, out=p.grad)
    scaler.step(optimizer)
    scaler.update()


print(audit(step, model=model, optimizer=optimizer, scaler=scaler, batches=batches))
scaler.scale(torch.zeros(()))
scaler._scale.fill_(2.0**30)  # the proof: the gradients overflow, and nothing happens
for x, y in batches:
    step(x, y)
print("scale after four overflows:", scaler.get_scale() / 2**30, "× 2**30")
