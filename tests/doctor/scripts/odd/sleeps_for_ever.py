# odd: runs for ever without training
import time
from pathlib import Path

import torch

DATA = Path(__file__).with_name("arrives_later.pt")
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while not DATA.exists():
    print("waiting for", DATA.name, flush=True)
    time.sleep(1)
x, y = torch.load(DATA)
for _ in range(30):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
