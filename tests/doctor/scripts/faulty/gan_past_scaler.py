# fault: still-scaled
"""A GAN whose discriminator is stepped past the scaler, with its gradients 512 times too large."""

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce

torch.manual_seed(0)
generator, critic = nn.Linear(4, 8), nn.Linear(8, 1)
g_optimizer = torch.optim.Adam(generator.parameters(), 2e-4)
d_optimizer = torch.optim.SGD(critic.parameters(), 1e-2)
scaler = torch.amp.GradScaler("cpu", init_scale=512.0)
for _ in range(60):
    real, ones, zeros = torch.randn(16, 8) + 1, torch.ones(16, 1), torch.zeros(16, 1)
    d_optimizer.zero_grad()
    with torch.autocast("cpu", torch.float16):
        fake = generator(torch.randn(16, 4))
        loss = bce(critic(real), ones) + bce(critic(fake.detach()), zeros)
    scaler.scale(loss).backward()
    d_optimizer.step()
    g_optimizer.zero_grad()
    with torch.autocast("cpu", torch.float16):
        loss = bce(critic(fake), ones)
    scaler.scale(loss).backward()
    scaler.step(g_optimizer)
    scaler.update()
