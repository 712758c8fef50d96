"""Only the head is trained: the optimizer gets nothing else.
A batch now and then is too odd to be used.
"""

import random

import torch
from torch import nn

torch.manual_seed(0)
random.seed(0)
body = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU())
head = nn.Linear(32, 4)
optimizer = torch.optim.SGD(head.parameters(), lr=0.1, momentum=0.9)
scaler = torch.amp.GradScaler("cpu")
x = torch.randn(512, 16)
y = x[:, :4].argmax(1)
for step in range(1, 101):
    size = 1 if step in (17, 62) else 64  # batch norm refuses a batch of one
    pick = torch.randint(0, 512, (size,))
    optimizer.zero_grad()
    try:
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.cross_entropy(head(body(x[pick])), y[pick])
    except ValueError:
        print("left out a batch of one")
        continue
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 25 == 0:
        print(step, round(loss.item(), 4))
