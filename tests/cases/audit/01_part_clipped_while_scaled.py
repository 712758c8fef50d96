# EXPECTED: clipped-while-scaled or depends-on-scale: scaled gradients are clipped, and only those
# of one part of the parameters.
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tests.cases.tools import audit

torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 5))
body, head = list(model[0].parameters()), list(model[2].parameters())
optimizer = torch.optim.AdamW([{"params": body, "lr": 1e-4}, {"params": head, "lr": 1e-3}])
scaler = torch.amp.GradScaler("cpu", init_scale=4096.0)
batches = [(torch.randn(16, 20), torch.randint(5, (16,))) for _ in range(4)]


def step(x, y):
    with torch.autocast("cpu", dtype=torch.float16):
        loss = cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    nn.utils.clip_grad_norm_(body, 0.5)  # the unscale_ before it is missing
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()


print(
    audit(
        step,
        model=model,
        optimizer=optimizer,
        scaler=scaler,
        batches=batches,
        loss=lambda m, x, y: cross_entropy(m(x), y),
    )
)
