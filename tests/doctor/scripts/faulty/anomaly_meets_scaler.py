# fault: anomaly-mode-meets-scaler
import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--debug", action=argparse.BooleanOptionalAction, default=True)
parser.add_argument("--steps", type=int, default=40)
args = parser.parse_args()
torch.autograd.set_detect_anomaly(args.debug)


class Gate(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scores = nn.Linear(width, width)

    def forward(self, x):
        return x * self.scores(x).softmax(-1)


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(12, 32), Gate(32), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
for step in range(args.steps):
    x = torch.randn(64, 12)
    y = 200 * x[:, :1] * x[:, 1:2].sign()
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 5 == 0:
        print(step, loss.item(), scaler.get_scale(), flush=True)
