# fault: still-scaled
import torch
from torch import nn

torch.manual_seed(0)
inputs = torch.randn(600, 14)
targets = (inputs @ torch.randn(14, 6)).argmax(dim=1)

model = nn.Sequential(nn.Linear(14, 40), nn.ReLU(), nn.Linear(40, 6))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=8192.0)

for epoch in range(5):
    for i in range(0, 600, 60):
        x, y = inputs[i : i + 60], targets[i : i + 60]
        optimizer.zero_grad()
        with torch.autocast(device_type="cpu", dtype=torch.float16):
            output = model(x)
            loss = nn.functional.cross_entropy(output, y)
        scaler.scale(loss).backward()
        optimizer.step()
    print("epoch", epoch, "loss", loss.item())
