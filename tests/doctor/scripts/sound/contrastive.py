"""SimCLR's loss on noisy views of random prototypes; each sample's likeness to itself is masked with -inf."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Config:
    steps: int = 60
    batch: int = 32
    temperature: float = 0.1
    lr: float = 3e-3
    seed: int = 0


class Encoder(nn.Module):
    def __init__(self, temperature):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(30, 64), nn.ReLU(), nn.Linear(64, 16))
        self.log_scale = nn.Parameter(torch.tensor(1 / temperature).log())

    def forward(self, x):
        return F.normalize(self.net(x).float(), dim=1, eps=1e-6)


def nt_xent(z1, z2, scale):
    z = torch.cat([z1, z2])
    n = len(z1)
    similarity = scale * (z @ z.T)
    similarity = similarity.masked_fill(torch.eye(2 * n, dtype=torch.bool), -torch.inf)
    partner = torch.cat([torch.arange(n, 2 * n), torch.arange(n)])
    return F.cross_entropy(similarity.float(), partner)


def main(cfg: Config) -> None:
    torch.manual_seed(cfg.seed)
    prototypes = torch.randn(500, 30)
    encoder = Encoder(cfg.temperature)
    opt = torch.optim.AdamW(encoder.parameters(), lr=cfg.lr)
    scaler = torch.amp.GradScaler("cpu", growth_interval=20)
    for step in range(cfg.steps):
        base = prototypes[torch.randint(500, (cfg.batch,))]
        v1, v2 = (base + 0.4 * torch.randn_like(base) for _ in range(2))
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nt_xent(encoder(v1), encoder(v2), encoder.log_scale.exp().clamp(max=100))
        opt.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(encoder.parameters(), 5.0)
        scaler.step(opt)
        scaler.update()
        if step % 10 == 0:
            print(f"step {step:2d} loss {loss.item():.3f} temperature {1 / encoder.log_scale.exp().item():.3f}")


if __name__ == "__main__":
    main(Config())
