# odd: sys.exit(3) after five updates
import sys

import torch

torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(30):
    x = torch.randn(16, 3)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
    if step == 4:
        print("out of quota", file=sys.stderr)
        sys.exit(3)
