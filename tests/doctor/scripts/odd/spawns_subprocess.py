# odd: spawns a subprocess, which trains a model of its own too
import subprocess
import sys

import torch
from torch import nn


def train(width, tag):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 1))
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    for step in range(40):
        x = torch.randn(32, 4)
        loss = nn.functional.mse_loss(net(x), x.prod(1, keepdim=True))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 20 == 0:
            print(tag, step, loss.item(), flush=True)


if __name__ == "__main__":
    if "--small" in sys.argv:
        train(8, "small")
    else:
        done = subprocess.run([sys.executable, __file__, "--small"], capture_output=True, text=True, check=True)
        print(done.stdout, end="")
        train(32, "large")
