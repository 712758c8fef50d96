# EXPECTED: exit 0. It traces the model before training, as `SummaryWriter.add_graph` does.
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.jit.trace(model, torch.rand(1, 3, 16, 16), check_trace=False)
x, y = torch.rand(256, 3, 16, 16), torch.randint(0, 4, (256,))
for step in range(60):
    i = torch.randint(0, 256, (16,))
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x[i]), y[i])
    loss.backward()
    optimizer.step()
print(loss.item())
