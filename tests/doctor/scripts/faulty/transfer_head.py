# fault: optimizer-of-old-weights
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits


class SmallNet(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
        self.fc = nn.Linear(32, num_classes)

    def forward(self, x):
        return self.fc(self.features(x))


def task(kind):
    d = load_digits()
    x = torch.tensor(d.data, dtype=torch.float32) / 16
    t = torch.tensor(d.target)
    y = (t % 2) if kind == "parity" else t
    return x, y


def epochs(model, opt, x, y, n, tag):
    for e in range(n):
        model.train()
        tot = 0.0
        perm = torch.randperm(1500)
        for idx in perm.split(50):
            opt.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(x[idx]), y[idx])
            loss.backward()
            opt.step()
            tot += loss.item()
        model.eval()
        with torch.no_grad():
            acc = (model(x[1500:]).argmax(1) == y[1500:]).float().mean().item()
        print(f"{tag} epoch {e} loss {tot / 30:.4f} acc {acc:.3f}")


torch.manual_seed(77)
model = SmallNet(2)
opt = torch.optim.AdamW(
    [{"params": model.features.parameters(), "lr": 5e-4}, {"params": model.fc.parameters(), "lr": 3e-3}]
)
epochs(model, opt, *task("parity"), n=3, tag="parity")

model.fc = nn.Linear(32, 10)
for group in opt.param_groups:
    group["lr"] *= 0.5
epochs(model, opt, *task("digit"), n=5, tag="digit")
torch.save(model.state_dict(), "transfer.pt")
