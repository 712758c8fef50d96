"""A small GAN on a ring of points: one scaler, two optimizers, two steps of D for one of G."""

import itertools
import math

import torch
import torch.nn.functional as F
from torch import nn


def mlp(*sizes):
    layers = []
    for a, b in itertools.pairwise(sizes):
        layers += [nn.Linear(a, b), nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers[:-1])


def real_points(n):
    angle = torch.rand(n) * 2 * math.pi
    return torch.stack([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(n, 2)


class Gan:
    def __init__(self, latent=8, lr=1e-3):
        self.latent = latent
        self.g, self.d = mlp(latent, 48, 2), mlp(2, 48, 1)
        self.opt_g = torch.optim.Adam(self.g.parameters(), lr=lr, betas=(0.5, 0.99))
        self.opt_d = torch.optim.Adam(self.d.parameters(), lr=lr, betas=(0.5, 0.99))
        self.scaler = torch.amp.GradScaler("cpu")

    def autocast(self):
        return torch.autocast("cpu", dtype=torch.float16)

    def step_d(self, real):
        self.opt_d.zero_grad()  # also what the step of G left in D
        with self.autocast():
            fake = self.g(torch.randn(len(real), self.latent)).detach()
            up, down = self.d(real), self.d(fake)
            loss = F.softplus(-up.float()).mean() + F.softplus(down.float()).mean()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.opt_d)
        self.scaler.update()
        return loss.item()

    def step_g(self, n):
        self.opt_g.zero_grad()
        with self.autocast():
            loss = F.softplus(-self.d(self.g(torch.randn(n, self.latent))).float()).mean()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.opt_g)
        self.scaler.update()
        return loss.item()


if __name__ == "__main__":
    torch.manual_seed(0)
    gan = Gan()
    for i in range(60):
        loss_d = [gan.step_d(real_points(64)) for _ in range(2)]
        loss_g = gan.step_g(64)
        if i % 10 == 0:
            print(f"{i:3d} D {sum(loss_d) / 2:.3f} G {loss_g:.3f}")
