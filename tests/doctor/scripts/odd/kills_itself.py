# odd: ends itself by SIGKILL after eight updates
import os
import signal

import torch

torch.manual_seed(0)
model = torch.nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(40):
    x = torch.randn(32, 6)
    loss = torch.nn.functional.mse_loss(model(x), x.mean(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item(), flush=True)
    if step == 7:
        os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does when memory runs out
