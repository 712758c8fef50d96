# EXPECTED: overflow-not-skipped: a scaler of one's own halves its scale at an inf and takes the
# step all the same.
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tests.cases.tools import audit

torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batches = [(torch.randn(16, 20), torch.randint(5, (16,))) for _ in range(4)]
state = {"scale": 2.0**12}


def step(x, y):
    with torch.autocast("cpu", dtype=torch.float16):
        loss = cross_entropy(model(x), y)
    (loss * state["scale"]).backward()
    overflow = not all(p.grad.isfinite().all() for p in model.parameters())
    for p in model.parameters():
        p.grad.div_(state["scale"])
    optimizer.step()  # no `if not overflow`
    if overflow:
        state["scale"] /= 2
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
