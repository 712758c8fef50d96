# EXPECTED: no fault, twice: the clip is inside optimizer.step(), as in detectron2.
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tests.cases.tools import audit

torch.set_num_threads(1)


class Clipping(torch.optim.SGD):
    def step(self, closure=None):
        nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], 0.3)
        return super().step(closure)


for scaled in (False, True):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 5))
    optimizer = Clipping(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4096.0, enabled=scaled)
    batches = [(torch.randn(16, 20), torch.randint(5, (16,))) for _ in range(4)]

    def step(x, y):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16, enabled=scaled):
            loss = cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    print(
        audit(step, model=model, optimizer=optimizer, scaler=scaler, batches=batches, max_norm=0.3)
    )
    before = torch.cat([p.detach().flatten().clone() for p in model.parameters()])
    step(*batches[0])
    print(
        "moved by lr times",
        float(
            (torch.cat([p.detach().flatten() for p in model.parameters()]) - before).norm() / 0.1
        ),
    )
