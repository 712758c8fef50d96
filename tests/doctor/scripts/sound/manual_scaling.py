"""Loss scaling by hand, as one did before there was a GradScaler."""

import torch
from torch import nn


class LossScale:
    def __init__(self, scale=2.0**22, patience=40):
        self.scale, self.patience, self.good = scale, patience, 0

    def unscale(self, params):
        """Divide by the scale; tell whether all gradients are finite."""
        grads = [p.grad for p in params if p.grad is not None]
        for g in grads:
            g.mul_(1 / self.scale)
        return all(torch.isfinite(g).all() for g in grads)

    def update(self, ok):
        if not ok:
            self.scale, self.good = self.scale / 2, 0
            return
        self.good += 1
        if self.good == self.patience:
            self.scale, self.good = self.scale * 2, 0


def run(steps=100):
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 3))
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    ls = LossScale()
    x = torch.randn(512, 12)
    y = (x @ torch.randn(12, 3)).argmax(1)
    for step in range(steps):
        idx = torch.randint(0, 512, (64,))
        with torch.autocast("cpu", dtype=torch.float16):
            out = model(x[idx])
        loss = nn.functional.cross_entropy(out.float(), y[idx])
        opt.zero_grad()
        (loss * ls.scale).backward()
        ok = ls.unscale(model.parameters())
        if ok:
            opt.step()
        ls.update(ok)
        if step % 10 == 0:
            print(f"{step=} loss={loss.item():.4f} scale={ls.scale:g}{'' if ok else ' skipped'}")


if __name__ == "__main__":
    run()
