# fault: clipped-while-scaled
"""A GAN that freezes its discriminator while it trains the generator; one scaler for both, and a
clip without `unscale_`.
"""

import torch
from torch import nn

torch.manual_seed(0)
bce, batch, real = nn.BCEWithLogitsLoss(), torch.randn(8, 4), torch.ones(8, 1)
generator, discriminator = nn.Linear(4, 4), nn.Linear(4, 1)
models = generator, discriminator
g_optimizer, d_optimizer = (torch.optim.Adam(one.parameters(), lr=1e-3) for one in models)
scaler = torch.amp.GradScaler("cpu")
for _ in range(20):
    discriminator.requires_grad_(False)
    generator.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        fake = generator(batch)
        loss = bce(discriminator(fake), real)
    scaler.scale(loss).backward()
    scaler.step(g_optimizer)
    scaler.update()
    discriminator.requires_grad_(True)
    discriminator.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = bce(discriminator(batch + 1), real) + bce(discriminator(fake.detach()), 1 - real)
    scaler.scale(loss).backward()
    nn.utils.clip_grad_norm_(discriminator.parameters(), 0.01)
    scaler.step(d_optimizer)
    scaler.update()
