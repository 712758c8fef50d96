import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.amp import GradScaler, autocast
from torch.utils.data import DataLoader, TensorDataset

CKPT = "backbone_low_digits.pth"


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.low = nn.Sequential(nn.Linear(64, 96), nn.BatchNorm1d(96), nn.ReLU())
        self.high = nn.Sequential(nn.Linear(96, 96), nn.BatchNorm1d(96), nn.ReLU())

    def forward(self, x):
        return self.high(self.low(x))


class Classifier(nn.Module):
    def __init__(self, n_classes, frozen=()):
        super().__init__()
        self.backbone = Backbone()
        self.head = nn.Linear(96, n_classes)
        self.frozen = list(frozen)

    def forward(self, x):
        return self.head(self.backbone(x))

    def freeze(self):
        for name in self.frozen:
            getattr(self.backbone, name).requires_grad_(False)

    def thaw(self, name):
        self.frozen.remove(name)
        return getattr(self.backbone, name).requires_grad_(True).parameters()

    def train(self, mode=True):
        super().train(mode)
        for name in self.frozen:  # keep the stored statistics of frozen stages
            getattr(self.backbone, name).eval()
        return self


def split(lo, hi):
    d = load_digits()
    x = torch.tensor(d.data, dtype=torch.float32) / 16
    y = torch.tensor(d.target)
    m = (y >= lo) & (y < hi)
    x, y = x[m], y[m] - lo
    n = int(0.8 * len(x))
    return TensorDataset(x[:n], y[:n]), (x[n:], y[n:])


def pretrain():
    torch.manual_seed(1)
    ds, _ = split(0, 5)
    net = Classifier(5)
    opt = torch.optim.Adam(net.parameters(), 2e-3)
    for _ in range(3):
        for x, y in DataLoader(ds, 64, shuffle=True, drop_last=True):
            loss = F.cross_entropy(net(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
    torch.save(net.backbone.state_dict(), CKPT)
    print(f"pretrained, last loss {loss.item():.4f}")


def finetune():
    torch.manual_seed(2)
    ds, (xv, yv) = split(5, 10)
    net = Classifier(5, frozen=["low", "high"])
    net.backbone.load_state_dict(torch.load(CKPT))
    net.freeze()
    opt = torch.optim.AdamW(filter(lambda p: p.requires_grad, net.parameters()), lr=5e-3)
    scaler = GradScaler("cpu")
    loader = DataLoader(ds, 64, shuffle=True, drop_last=True)
    for epoch in range(8):
        if epoch == 4:
            opt.add_param_group({"params": list(net.thaw("high")), "lr": 5e-4})
        net.train()
        for x, y in loader:
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.cross_entropy(net(x), y)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
        net.eval()
        with torch.no_grad():
            out = net(xv)
            print(
                f"epoch {epoch} train {loss.item():.3f} val {F.cross_entropy(out, yv):.3f} acc "
                f"{(out.argmax(1) == yv).float().mean():.3f}"
            )


if __name__ == "__main__":
    pretrain()
    finetune()
