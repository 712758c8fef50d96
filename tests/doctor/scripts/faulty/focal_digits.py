# fault: log-of-zero
from collections import deque

import torch
import torch.nn as nn
from sklearn.datasets import load_digits
from torch.amp import GradScaler, autocast


class FocalLoss(nn.Module):
    def __init__(self, gamma=2.0, smoothing=0.05, eps=1e-8):
        super().__init__()
        self.gamma, self.smoothing, self.eps = gamma, smoothing, eps

    def forward(self, logits, target):
        n = logits.size(-1)
        p = logits.softmax(dim=-1)
        soft = torch.full_like(p, self.smoothing / n)
        soft.scatter_(1, target[:, None], 1.0 - self.smoothing + self.smoothing / n)
        logp = torch.log(p + self.eps)
        return -(soft * (1 - p).pow(self.gamma) * logp).sum(-1).mean()


def main():
    torch.manual_seed(3)
    digits = load_digits()
    x = torch.as_tensor(digits.data, dtype=torch.float32) / 2
    y = torch.as_tensor(digits.target)
    net = nn.Sequential(
        nn.Linear(64, 80), nn.ReLU(), nn.Linear(80, 80), nn.ReLU(), nn.Linear(80, 10)
    )
    for layer in net[::2]:
        nn.init.kaiming_normal_(layer.weight)
        nn.init.zeros_(layer.bias)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    scaler = GradScaler("cpu")
    focal = FocalLoss()
    recent = deque(maxlen=20)

    for it in range(200):
        idx = torch.randint(0, 1500, (48,))
        with autocast("cpu", dtype=torch.float16):
            loss = focal(net(x[idx]), y[idx])
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        recent.append(loss.item())
        if it % 20 == 19:
            with torch.no_grad():
                acc = (net(x[1500:]).argmax(1) == y[1500:]).float().mean()
            print(f"{it + 1:3d} loss {sum(recent) / len(recent):.4f} acc {acc:.3f}")


main()
