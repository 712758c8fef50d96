"""Two tasks train one network, each with an optimizer and a schedule of its own, in turn."""

import torch
from torch import nn

torch.manual_seed(0)
body = nn.Sequential(nn.Linear(12, 32), nn.ReLU())
kind, amount = nn.Linear(32, 4), nn.Linear(32, 1)
tasks = [
    (nn.Sequential(body, kind), nn.CrossEntropyLoss()),
    (nn.Sequential(body, amount), nn.MSELoss()),
]
optimizers = [torch.optim.AdamW(model.parameters(), lr=3e-3) for model, _ in tasks]
schedules = [torch.optim.lr_scheduler.LinearLR(one, 1.0, 0.1, 60) for one in optimizers]
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**17)
rule = torch.randn(12, 5)

for _ in range(60):
    for number, (model, loss_fn) in enumerate(tasks):
        x = torch.randn(32, 12)
        y = (x @ rule[:, :4]).argmax(1) if number == 0 else x @ rule[:, 4:]
        with torch.autocast("cpu", dtype=torch.float16):
            loss = loss_fn(model(x).float(), y)
        before = scaler.get_scale()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizers[number])
        nn.utils.clip_grad_norm_(model.parameters(), 0.3)
        scaler.step(optimizers[number])
        scaler.update()
        optimizers[number].zero_grad()
        if scaler.get_scale() >= before:
            schedules[number].step()
