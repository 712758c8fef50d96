# Fit a 2-d scalar field with a small net, gradient penalty on the parameters' gradients.
import torch
from torch import nn

torch.manual_seed(4)
dev = "cpu"


def target(x):
    return torch.sin(2 * x[:, :1]) * torch.cos(3 * x[:, 1:])


net = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)).to(dev)
optimizer = torch.optim.Adam(net.parameters(), lr=6e-3)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=60, gamma=0.5)
scaler = torch.amp.GradScaler(dev)
params = list(net.parameters())
LAMBDA = 1e-3

for step in range(140):
    x = torch.rand(256, 2, device=dev) * 2 - 1
    y = target(x)
    optimizer.zero_grad()
    with torch.autocast(dev, dtype=torch.float16):
        fit = nn.functional.mse_loss(net(x).float(), y)

    scaled = torch.autograd.grad(outputs=scaler.scale(fit), inputs=params, create_graph=True)
    inv = 1.0 / scaler.get_scale()
    grads = [g * inv for g in scaled]

    with torch.autocast(dev, dtype=torch.float16):
        penalty = sum(g.float().pow(2).sum() for g in grads)
        loss = fit + LAMBDA * penalty

    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(params, 2.0)
    scale = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    if scaler.get_scale() >= scale:
        scheduler.step()
    if step % 20 == 0 or step == 139:
        print(f"{step:3d} fit {fit.item():.5f} penalty {penalty.item():.5f} scale {scaler.get_scale():.0f}")
