"""WGAN-GP under autocast. The inner gradient is scaled, unscaled,
and its penalty joins the loss before the backward.
"""

import torch
from torch import nn

torch.manual_seed(0)
critic = nn.Sequential(nn.Linear(2, 32), nn.SiLU(), nn.Linear(32, 32), nn.SiLU(), nn.Linear(32, 1))
generator = nn.Sequential(nn.Linear(4, 32), nn.SiLU(), nn.Linear(32, 2))
opt_c = torch.optim.Adam(critic.parameters(), lr=2e-3, betas=(0.0, 0.9))
opt_g = torch.optim.Adam(generator.parameters(), lr=2e-3, betas=(0.0, 0.9))
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
CENTRE = torch.tensor([2.0, -1.0])


def amp():
    return torch.autocast("cpu", dtype=torch.float16)


def penalty(real, fake):
    mix = torch.rand(len(real), 1)
    between = (mix * real + (1 - mix) * fake).requires_grad_()
    with amp():
        scores = critic(between).float().sum()
    (scaled,) = torch.autograd.grad(scaler.scale(scores), between, create_graph=True)
    grad = scaled / scaler.get_scale()
    with amp():
        return ((grad.float().square().sum(1) + 1e-12).sqrt() - 1).square().mean()


for it in range(50):
    for _ in range(2):
        real = CENTRE + 0.3 * torch.randn(64, 2)
        with amp():
            fake = generator(torch.randn(64, 4)).detach().float()
            gap = critic(fake).float().mean() - critic(real).float().mean()
        gp = penalty(real, fake)
        loss_c = gap + 10 * gp
        opt_c.zero_grad()
        scaler.scale(loss_c).backward()
        scaler.step(opt_c)
        scaler.update()

    with amp():
        loss_g = -critic(generator(torch.randn(64, 4))).float().mean()
    opt_g.zero_grad()
    scaler.scale(loss_g).backward()
    scaler.step(opt_g)
    scaler.update()
    if it % 10 == 0:
        with torch.no_grad():
            off = (generator(torch.randn(256, 4)).mean(0) - CENTRE).norm()
        print(
            f"{it:2d} critic {loss_c.item():.3f} penalty {gp.item():.3f} off centre {off:.2f} "
            f"{scaler.get_scale():g}"
        )
