# fault: never-cleared
import argparse

import torch
from torch import nn, optim


def parse():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=150)
    ap.add_argument("--batch", type=int, default=128)
    ap.add_argument("--nz", type=int, default=4)
    ap.add_argument("--lr", type=float, default=1e-3)
    return ap.parse_args()


class Generator(nn.Module):
    def __init__(self, nz, h=48):
        super().__init__()
        self.main = nn.Sequential(
            nn.Linear(nz, h), nn.ReLU(), nn.Linear(h, h), nn.ReLU(), nn.Linear(h, 2)
        )

    def forward(self, z):
        return self.main(z)


class Critic(nn.Module):
    def __init__(self, h=48):
        super().__init__()
        self.main = nn.Sequential(
            nn.Linear(2, h), nn.LeakyReLU(0.2), nn.Linear(h, h), nn.LeakyReLU(0.2), nn.Linear(h, 1)
        )

    def forward(self, x):
        return self.main(x).squeeze(1)


def real_batch(n):
    centre = torch.tensor([3.0, -2.0])
    return centre + 0.3 * torch.randn(n, 2)


def main():
    opt = parse()
    torch.manual_seed(99)
    netG, netD = Generator(opt.nz), Critic()
    optG = optim.Adam(netG.parameters(), lr=opt.lr, betas=(0.5, 0.999))
    optD = optim.Adam(netD.parameters(), lr=opt.lr, betas=(0.5, 0.999))

    bce = nn.BCEWithLogitsLoss()

    for step in range(opt.steps):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            fake = netG(torch.randn(opt.batch, opt.nz))
            out_real, out_fake = netD(real_batch(opt.batch)), netD(fake.detach())
            lossD = bce(out_real, torch.ones(opt.batch)) + bce(out_fake, torch.zeros(opt.batch))
        lossD.backward()
        optD.step()
        optD.zero_grad()

        with torch.autocast("cpu", dtype=torch.bfloat16):
            lossG = bce(netD(fake), torch.ones(opt.batch))
        lossG.backward()
        optG.step()
        optG.zero_grad()

        if step % 25 == 24:
            with torch.no_grad():
                s = netG(torch.randn(1000, opt.nz))
            m = s.mean(0).tolist()
            print(
                f"step {step + 1} D {lossD.item():.3f} G {lossG.item():.3f} samples at "
                f"({m[0]:+.2f}, {m[1]:+.2f}) spread {s.std(0).mean():.2f}"
            )


if __name__ == "__main__":
    main()
