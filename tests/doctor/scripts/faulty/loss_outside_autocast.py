# fault: loss-outside-autocast
import torch
from sklearn.datasets import load_digits
from torch import nn

torch.manual_seed(0)
digits = load_digits()
x = torch.tensor(digits.data / 16, dtype=torch.float32)
y = torch.tensor(digits.target)
model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
criterion = nn.CrossEntropyLoss()
scaler = torch.amp.GradScaler("cpu")

step = 0
for _ in range(3):
    for batch in torch.randperm(len(x)).split(100):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            out = model(x[batch])
        loss = criterion(out, y[batch])
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if step % 8 == 0:
            print(step, loss)
        step += 1
