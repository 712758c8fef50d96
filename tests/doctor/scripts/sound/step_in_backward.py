"""Each parameter is stepped and cleared in a hook of the backward pass,
by an optimizer of its own, to save memory.
"""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 10))
optimizers = {p: torch.optim.Adam([p], lr=3e-3, foreach=False) for p in model.parameters()}


def step_now(p):
    optimizers[p].step()
    optimizers[p].zero_grad()


for p in model.parameters():
    p.register_post_accumulate_grad_hook(step_now)

for i in range(60):
    x = torch.randn(64, 10)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(x)
    loss = nn.functional.mse_loss(out.float(), x.sort(1).values)
    loss.backward()
    if i % 10 == 0:
        print(i, loss.item())
