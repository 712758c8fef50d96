# EXPECTED: at least advice: the averaged copy never moves.
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 4))
ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(512, 20)
y = (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()
for step in range(120):
    i = torch.randint(0, 512, (32,))
    optimizer.zero_grad()
    F.cross_entropy(model(x[i]), y[i]).backward()
    optimizer.step()
    if step % 20 == 19:
        with torch.no_grad():
            print(F.cross_entropy(ema(x), y).item())
torch.save(ema.state_dict(), "ema.pt")
