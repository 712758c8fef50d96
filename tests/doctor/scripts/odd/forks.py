# odd: forks, and trains in the child
import os
import sys

import torch
from torch import nn


def train():
    torch.manual_seed(0)
    net = nn.Linear(6, 2)
    opt = torch.optim.SGD(net.parameters(), lr=0.2)
    for step in range(40):
        x = torch.randn(32, 6)
        loss = nn.functional.cross_entropy(net(x), (x[:, 0] > x[:, 1]).long())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 10 == 0:
            print(f"child {os.getpid()}: step {step} loss {loss.item():.3f}", flush=True)


pid = os.fork()
if pid == 0:
    train()
    os._exit(0)
_, status = os.waitpid(pid, 0)
print("parent: child ended with", os.waitstatus_to_exitcode(status))
sys.exit(os.waitstatus_to_exitcode(status))
