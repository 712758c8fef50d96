# EXPECTED: exit 0. A probe is fitted on a frozen trunk in evaluation mode on purpose, with the same
# optimizer object.
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
trunk = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Dropout(0.2))
head, probe = nn.Linear(32, 4), nn.Linear(32, 4)
optimizer = torch.optim.SGD([*trunk.parameters(), *head.parameters()], lr=0.1)
x = torch.randn(512, 20)
y = (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()
for step in range(30):
    i = torch.randint(0, 512, (32,))
    optimizer.zero_grad()
    F.cross_entropy(head(trunk(x[i])), y[i]).backward()
    optimizer.step()
trunk.eval().requires_grad_(False)
probe.eval()  # it has no mode; harmless
optimizer.param_groups.clear()
optimizer.add_param_group({"params": list(probe.parameters()), "lr": 0.1})
for step in range(60):
    i = torch.randint(0, 512, (32,))
    optimizer.zero_grad()
    loss = F.cross_entropy(probe(trunk(x[i])), y[i])
    loss.backward()
    optimizer.step()
print(loss.item())
