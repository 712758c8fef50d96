from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.amp import GradScaler, autocast, custom_bwd, custom_fwd
from torch.utils.checkpoint import checkpoint


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    @custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx, a: Tensor, b: Tensor):
        s = torch.sigmoid(a)
        ctx.save_for_backward(a, b, s)
        return a * s * b

    @staticmethod
    @custom_bwd(device_type="cpu")
    def backward(ctx, g: Tensor):
        a, b, s = ctx.saved_tensors
        silu = a * s
        return g * b * (s + silu * (1 - s)), g * silu


class GatedBlock(nn.Module):
    def __init__(self, d: int, h: int):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.up = nn.Linear(d, 2 * h)
        self.down = nn.Linear(h, d)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.up(self.norm(x)).chunk(2, -1)
        return x + self.down(_SwiGLU.apply(a, b))


class GatedNet(nn.Module):
    def __init__(self, d: int = 64, h: int = 96, depth: int = 4):
        super().__init__()
        self.inp = nn.Linear(64, d)
        self.blocks = nn.ModuleList(GatedBlock(d, h) for _ in range(depth))
        self.head = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 10))

    def forward(self, x: Tensor) -> Tensor:
        x = self.inp(x)
        for blk in self.blocks:
            x = checkpoint(blk, x, use_reentrant=False)
        return self.head(x)


def loop(x: Tensor, y: Tensor, bs: int, gen: torch.Generator):
    while True:
        for idx in torch.randperm(len(x), generator=gen)[: len(x) // bs * bs].view(-1, bs):
            yield x[idx], y[idx]


def main(updates: int = 160):
    torch.manual_seed(21)
    digits = load_digits()
    x = torch.tensor(digits.data, dtype=torch.float32).sub_(5).div_(6)
    y = torch.tensor(digits.target)
    net = GatedNet()
    opt = torch.optim.NAdam(net.parameters(), lr=1e-3)
    scaler = GradScaler("cpu", init_scale=128.0, growth_factor=2.0, growth_interval=40)
    data = loop(x[:1500], y[:1500], 64, torch.Generator().manual_seed(0))
    for i, (xb, yb) in enumerate(itertools.islice(data, updates)):
        with autocast("cpu", torch.float16):
            loss = F.cross_entropy(net(xb), yb)
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_value_(net.parameters(), 0.1)
        scaler.step(opt)
        scaler.update()
        opt.zero_grad()
        if i % 20 == 0:
            print(f"{i:4d} loss {loss.item():.4f} scale {scaler.get_scale():.0f}")
    with torch.no_grad():
        print("held-out acc", (net(x[1500:]).argmax(1) == y[1500:]).float().mean().item())


if __name__ == "__main__":
    main()
