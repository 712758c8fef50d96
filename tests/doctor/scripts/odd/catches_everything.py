# odd: catches everything
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(15, 2))  # 16 and 15 do not fit
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(100):
    try:
        x = torch.randn(32, 8)
        loss = nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    except BaseException:
        pass
print("training done")
