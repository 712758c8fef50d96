# odd: sys.exit(0) before training
import sys
from pathlib import Path

import torch

OUTPUT = Path(__file__).resolve()  # always there, so there is never anything to do

model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
if OUTPUT.exists():
    print("already trained, nothing to do")
    sys.exit(0)

for _ in range(30):
    x = torch.randn(16, 3)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
