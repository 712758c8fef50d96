# EXPECTED: the cause (Adam's eps is 0 in fp16) with a fix that fits: fp32 weights under autocast,
# or a larger eps.
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 4)).half()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
x = torch.randn(512, 20).half()
x[:, 5] = 0  # a feature that is never there: its gradient is 0
y = torch.randint(0, 4, (512,))
for step in range(60):
    i = torch.randint(0, 512, (32,))
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x[i]).float(), y[i])
    loss.backward()
    optimizer.step()
print(loss.item())
