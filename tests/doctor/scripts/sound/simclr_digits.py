import copy

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn


class Ema:
    def __init__(self, model, decay):
        self.shadow = copy.deepcopy(model).requires_grad_(False).eval()
        self.decay = decay

    @torch.no_grad()
    def update(self, model):
        for s, p in zip(self.shadow.parameters(), model.parameters(), strict=False):
            s.lerp_(p, 1 - self.decay)
        for s, b in zip(self.shadow.buffers(), model.buffers(), strict=False):
            s.copy_(b)


def augment(x, g):
    img = x.view(-1, 8, 8)
    keep = torch.rand(img.shape, generator=g) > 0.2
    gain = 0.8 + 0.4 * torch.rand(len(img), 1, 1, generator=g)
    return (img * keep * gain + 0.1 * torch.randn(img.shape, generator=g)).flatten(1)


class Encoder(nn.Module):
    def __init__(self, d=64, out=32):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(64, d),
            nn.BatchNorm1d(d),
            nn.ReLU(),
            nn.Linear(d, d),
            nn.BatchNorm1d(d),
            nn.ReLU(),
        )
        self.proj = nn.Linear(d, out)
        self.log_scale = nn.Parameter(torch.tensor(3.0))

    def forward(self, x):
        return F.normalize(self.proj(self.trunk(x)).float(), dim=1, eps=1e-6)


def nt_xent(a, b, log_scale):
    z = torch.cat([a, b])
    n = len(a)
    with torch.autocast("cpu", enabled=False):
        sim = z @ z.t() * log_scale.clamp(max=4.6052).exp()
        sim.fill_diagonal_(float("-inf"))
        target = torch.arange(2 * n).roll(n)
        return F.cross_entropy(sim, target)


@torch.no_grad()
def knn_acc(enc, xtr, ytr, xte, yte, k=5):
    def f(v):
        return F.normalize(enc.trunk(v), dim=1)

    nn_idx = (f(xte) @ f(xtr).t()).topk(k, dim=1).indices
    return (ytr[nn_idx].mode(1).values == yte).float().mean().item()


def main(steps=200, bs=64):
    torch.manual_seed(2)
    g = torch.Generator().manual_seed(2)
    d = load_digits()
    x = torch.tensor(d.data, dtype=torch.float32) / 16
    y = torch.tensor(d.target)
    xtr, ytr, xte, yte = x[:1400], y[:1400], x[1400:], y[1400:]
    enc = Encoder()
    ema = Ema(enc, 0.95)
    opt = torch.optim.AdamW(enc.parameters(), lr=2e-3, weight_decay=1e-4)
    for s in range(steps):
        xb = xtr[torch.randint(0, len(xtr), (bs,), generator=g)]
        with torch.autocast("cpu", torch.bfloat16):
            za, zb = enc(augment(xb, g)), enc(augment(xb, g))
        loss = nt_xent(za, zb, enc.log_scale)
        loss.backward()
        opt.step()
        opt.zero_grad()
        ema.update(enc)
        if s % 40 == 0 or s == steps - 1:
            acc = knn_acc(ema.shadow, xtr, ytr, xte, yte)
            print(
                f"step {s} loss {loss.item():.3f} temp {1 / enc.log_scale.exp().item():.4f} "
                f"ema-knn {acc:.3f}"
            )


main()
