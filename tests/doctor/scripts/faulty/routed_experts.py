# fault: swallowed-exception
import logging

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits

logging.basicConfig(level=logging.INFO, format="%(message)s")
log = logging.getLogger("experts")


class Routed(nn.Module):
    """dark pictures go through a second stage"""

    def __init__(self, d=64, h=48, classes=10, threshold=0.385):
        super().__init__()
        self.stage1 = nn.Sequential(nn.Linear(d, d), nn.ReLU())
        self.stage2 = nn.Sequential(nn.Linear(d, h), nn.ReLU(), nn.Linear(h, d))
        self.head = nn.Linear(d, classes)
        self.threshold = threshold

    def forward(self, x):
        feats = x + torch.zeros_like(x)
        feats = feats + self.stage1(x)
        dark = x.mean(1) > self.threshold
        if dark.any():
            feats[dark] = self.stage2(feats[dark])
        return self.head(feats)


def fit(model, x, y, steps, bs):
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    good = 0
    for step in range(steps):
        idx = torch.randint(0, len(x), (bs,))
        opt.zero_grad()
        try:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(x[idx]), y[idx])
            loss.backward()
            opt.step()
            good += 1
        except RuntimeError:  # out of memory on the small machine
            continue
        if step % 30 == 0:
            log.info("step %d loss %.4f", step, loss.item())
    return good


if __name__ == "__main__":
    torch.manual_seed(41)
    d = load_digits()
    x = torch.tensor(d.data, dtype=torch.float32) / 16
    y = torch.tensor(d.target)
    model = Routed()
    fit(model, x[:1500], y[:1500], steps=240, bs=32)
    model.eval()
    with torch.no_grad():
        acc = (model(x[1500:]).argmax(1) == y[1500:]).float().mean().item()
    log.info("test accuracy %.3f", acc)
    torch.save(model.state_dict(), "routed.pt")
