# EXPECTED: no harm, five times: PyTorch's own recipe of unscale_, clip and step; the step overflows
# and is skipped.
import torch
from torch import nn

from tests.cases.tools import first_nonfinite


def trial(name, sizes, clip):
    torch.manual_seed(0)
    model = nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    xs = [torch.randn(4, 8) * s for s in sizes]

    def step():
        optimizer.zero_grad()
        for x in xs:
            with torch.autocast("cpu", dtype=torch.float16):
                loss = model(x).float().abs().mean() / len(xs)
            scaler.scale(loss).backward()
        if clip:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    before = model.weight.clone()
    print(name, first_nonfinite(step, model=model, optimizer=optimizer, scaler=scaler))
    step()
    assert torch.equal(before, model.weight)


trial("one micro-batch", [5e3], False)
trial("and clipped", [5e3], True)
trial("accumulated and clipped", [1, 5e3, 1], True)
trial("accumulated", [1, 5e3, 1], False)
trial("the last one overflows", [1, 1, 5e3], True)
