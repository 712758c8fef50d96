import os

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STATE = "student_state.pt"
T, ALPHA = 4.0, 0.7


def data():
    d = load_digits()
    x = torch.tensor(d.data, dtype=torch.float32) / 16
    y = torch.tensor(d.target)
    return TensorDataset(x[:1400], y[:1400]), x[1400:], y[1400:]


def make_teacher(ds):
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
    )
    opt = torch.optim.Adam(net.parameters(), 2e-3)
    for _ in range(4):
        for x, y in DataLoader(ds, 100, shuffle=True):
            opt.zero_grad()
            F.cross_entropy(net(x), y, label_smoothing=0.05).backward()
            opt.step()
    return net.eval().requires_grad_(False)


class Session:
    """One run of the job; picks up where the previous one stopped."""

    def __init__(self, epochs_total):
        torch.manual_seed(123)
        self.net = nn.Sequential(nn.Linear(64, 24), nn.ReLU(), nn.Dropout(0.1), nn.Linear(24, 10))
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)
        self.sched = torch.optim.lr_scheduler.CosineAnnealingLR(self.opt, epochs_total)
        self.scaler = torch.amp.GradScaler("cpu", growth_interval=50)
        self.epoch = 0
        if os.path.exists(STATE):
            s = torch.load(STATE, weights_only=False)
            self.net.load_state_dict(s["net"])
            self.opt.load_state_dict(s["opt"])
            self.sched.load_state_dict(s["sched"])
            self.scaler.load_state_dict(s["scaler"])
            self.epoch = s["epoch"]
            torch.set_rng_state(s["rng"])
            print("resumed at epoch", self.epoch, "scale", self.scaler.get_scale())

    def save(self):
        torch.save(
            dict(
                net=self.net.state_dict(),
                opt=self.opt.state_dict(),
                sched=self.sched.state_dict(),
                scaler=self.scaler.state_dict(),
                epoch=self.epoch,
                rng=torch.get_rng_state(),
            ),
            STATE,
        )

    def run(self, teacher, ds, xv, yv, until):
        while self.epoch < until:
            self.net.train()
            run = 0.0
            loader = DataLoader(ds, 100, shuffle=True)
            for x, y in loader:
                with torch.no_grad():
                    t = teacher(x)
                with torch.autocast("cpu", torch.float16):
                    s = self.net(x).float()
                    kd = (
                        F.kl_div(
                            F.log_softmax(s / T, -1),
                            F.log_softmax(t / T, -1),
                            log_target=True,
                            reduction="batchmean",
                        )
                        * T
                        * T
                    )
                    ce = F.cross_entropy(s, y, label_smoothing=0.1)
                    loss = ALPHA * kd + (1 - ALPHA) * ce
                self.scaler.scale(loss).backward()
                self.scaler.step(self.opt)
                self.scaler.update()
                self.opt.zero_grad()
                run += loss.item()
            self.sched.step()
            self.epoch += 1
            self.net.eval()
            with torch.no_grad():
                acc = (self.net(xv).argmax(1) == yv).float().mean().item()
            print(
                f"epoch {self.epoch} loss {run / len(loader):.3f} acc {acc:.3f} scale "
                f"{self.scaler.get_scale():g}"
            )
            self.save()


if os.path.exists(STATE):
    os.remove(STATE)
ds, xv, yv = data()
teacher = make_teacher(ds)
for stop in (4, 8, 12):
    Session(12).run(teacher, ds, xv, yv, stop)
