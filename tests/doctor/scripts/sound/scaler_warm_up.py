"""The scale starts far too high on purpose; the first steps are skipped until it fits."""

import torch
from sklearn.datasets import load_digits
from torch import nn

torch.manual_seed(0)
features, labels = load_digits(return_X_y=True)
features = torch.as_tensor(features, dtype=torch.float32) / 8 - 1
labels = torch.as_tensor(labels)

model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**26)

step = 0
for _epoch in range(4):
    for index in torch.randperm(len(features)).split(100):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            logits = model(features[index])
            loss = nn.functional.cross_entropy(logits.float(), labels[index])
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if step % 5 == 0:
            print(f"step {step:3d}: loss {loss.item():.3f}, scale 2**{torch.tensor(scaler.get_scale()).log2():.0f}")
        step += 1
