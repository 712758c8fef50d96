"""bf16 autocast needs no scaler; the learning rate follows the epochs."""

import torch
from sklearn.datasets import load_digits
from torch import nn

torch.manual_seed(0)
X, y = load_digits(return_X_y=True)
X = torch.tensor(X, dtype=torch.float32) / 16
y = torch.tensor(y)

net = nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.LayerNorm(96), nn.Linear(96, 10))
criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
opt = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=1e-2)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=4)

for epoch in range(4):
    total = 0.0
    for idx in torch.randperm(len(X)).split(128):
        with torch.autocast(device_type="cpu", dtype=torch.bfloat16):
            loss = criterion(net(X[idx]), y[idx])
        loss.backward()
        opt.step()
        opt.zero_grad(set_to_none=True)
        total += loss.item() * len(idx)
    sched.step()
    print(f"epoch {epoch}  loss {total / len(X):.4f}  lr {sched.get_last_lr()[0]:.2e}")
