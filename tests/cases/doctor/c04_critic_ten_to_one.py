# EXPECTED: exit 0, and no sentence that the generator's optimizer took no step: it steps once in
# ten.
import torch
from torch import nn

torch.manual_seed(0)
G = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
D = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 1))
opt_g = torch.optim.RMSprop(G.parameters(), lr=5e-4)
opt_d = torch.optim.RMSprop(D.parameters(), lr=5e-4)
for step in range(600):
    real = torch.randn(64, 2) * 0.2 + 1
    opt_d.zero_grad()
    fake = G(torch.randn(64, 8)).detach()
    loss_d = D(fake).mean() - D(real).mean()
    loss_d.backward()
    opt_d.step()
    for p in D.parameters():
        p.data.clamp_(-0.05, 0.05)
    if step % 10 == 9:
        opt_g.zero_grad()
        loss_g = -D(G(torch.randn(64, 8))).mean()
        loss_g.backward()
        opt_g.step()
print(loss_d.item(), loss_g.item())
