"""Fine-tuning: first the new head on a frozen body, then everything, with a new optimizer and a smaller rate."""

import torch
from sklearn.datasets import load_digits
from torch import nn

torch.manual_seed(0)
X, Y = load_digits(return_X_y=True)
X = torch.from_numpy(X).float().div(16)
Y = torch.from_numpy(Y).long()
body = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
head = nn.Linear(64, 10)
model = nn.Sequential(body, head)


def fit(optimizer, steps, tag):
    for step in range(steps):
        i = torch.randint(len(X), (64,))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(X[i]), Y[i])
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"{tag} {step:3d} {loss.item():.3f}")


# phase 1
for p in body.parameters():
    p.requires_grad_(False)
model.train()
body.eval()  # its batch norm keeps its statistics
fit(torch.optim.Adam(filter(lambda p: p.requires_grad, model.parameters()), lr=1e-2), 15, "head")

# phase 2
for p in body.parameters():
    p.requires_grad_(True)
model.train()
fit(torch.optim.Adam([{"params": body.parameters(), "lr": 1e-3}, {"params": head.parameters()}], lr=3e-3), 50, "all ")
