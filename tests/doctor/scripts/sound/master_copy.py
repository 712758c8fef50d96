"""fp16 model, fp32 master weights, both kept by hand."""

import copy

import torch
from torch import nn

torch.manual_seed(0)
master = nn.Sequential(nn.Linear(20, 50), nn.ReLU(), nn.Linear(50, 5))
model = copy.deepcopy(master).half()
optimizer = torch.optim.SGD(master.parameters(), lr=0.1, momentum=0.9)
SCALE = 512.0

x = torch.randn(1000, 20)
y = (x @ torch.randn(20, 5)).argmax(1)

for step in range(80):
    i = torch.randint(1000, (50,))
    loss = nn.functional.cross_entropy(model(x[i].half()).float(), y[i])
    for p in model.parameters():
        p.grad = None
    (loss * SCALE).backward()

    finite = True
    for big, small in zip(master.parameters(), model.parameters(), strict=True):
        big.grad = small.grad.float() / SCALE
        finite = finite and bool(big.grad.isfinite().all())
    if finite:
        optimizer.step()
        with torch.no_grad():
            for big, small in zip(master.parameters(), model.parameters(), strict=True):
                small.copy_(big)
    else:
        SCALE /= 2

    if step % 10 == 0:
        print("step", step, "loss", round(loss.item(), 4))
