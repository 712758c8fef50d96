# fault: clipped-while-scaled
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.amp import GradScaler, autocast


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())

    def forward(self, x):
        return self.net(x)


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.digit = nn.Linear(32, 10)
        self.ink = nn.Linear(32, 1)

    def forward(self, z):
        return self.digit(z), self.ink(z).squeeze(-1)


torch.manual_seed(23)
d = load_digits()
x = torch.tensor(d.data, dtype=torch.float32) / 16
y = torch.tensor(d.target)
ink = x.mean(1)
ink = (ink - ink.mean()) / ink.std()

encoder, heads = Encoder(), Heads()
enc_opt = torch.optim.SGD(encoder.parameters(), lr=0.05, momentum=0.9)
head_opt = torch.optim.SGD(heads.parameters(), lr=0.1, momentum=0.9)
all_params = list(encoder.parameters()) + list(heads.parameters())
scaler = GradScaler("cpu")

for epoch in range(6):
    stats = torch.zeros(3)
    for idx in torch.randperm(1500).split(50):
        with autocast("cpu", dtype=torch.float16):
            digit, amount = heads(encoder(x[idx]))
            ce = F.cross_entropy(digit, y[idx])
            reg = F.mse_loss(amount, ink[idx])
            loss = ce + 0.3 * reg
        enc_opt.zero_grad()
        head_opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(enc_opt)
        nn.utils.clip_grad_norm_(all_params, 2.0)
        scaler.step(enc_opt)
        scaler.step(head_opt)
        scaler.update()
        stats += torch.tensor([ce.item(), reg.item(), (digit.argmax(1) == y[idx]).float().mean().item()])
    ce, reg, acc = (stats / 30).tolist()
    print(f"epoch {epoch} ce {ce:.4f} reg {reg:.4f} acc {acc:.3f}")
