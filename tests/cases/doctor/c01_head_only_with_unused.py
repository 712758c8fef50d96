# EXPECTED: exit 0. A linear probe: only the head trains; one of its branches is not used by this
# task.
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
        self.head = nn.ModuleDict({"main": nn.Linear(32, 4), "aux": nn.Linear(32, 2)})

    def forward(self, x):
        return self.head["main"](self.backbone(x))


model = Net()
optimizer = torch.optim.SGD(model.head.parameters(), lr=0.1)
x = torch.randn(512, 20)
y = (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()
for step in range(60):
    i = torch.randint(0, 512, (32,))
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x[i]), y[i])
    loss.backward()
    optimizer.step()
print(loss.item())
