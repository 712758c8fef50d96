import torch
from torch import nn

torch.manual_seed(0)
data = torch.randn(640, 7)
target = data @ torch.arange(7.0) / 7
batches = list(zip(data.split(32), target.split(32), strict=True))
batches[9][0][4, 2] = float("nan")  # a known bad record; the loop below leaves its batch out

model = nn.Sequential(nn.Linear(7, 24), nn.ReLU(), nn.Linear(24, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

skipped = 0
for epoch in range(4):
    for x, y in batches:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x).squeeze(1), y)
        if not torch.isfinite(loss):
            skipped += 1
            continue
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: {loss.item():.4f}, {skipped} batches skipped so far")
