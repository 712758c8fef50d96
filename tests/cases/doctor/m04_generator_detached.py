# EXPECTED: a fault: the generator's optimizer steps 100 times, and none of its weights ever gets a
# gradient.
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
G = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
D = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 1))
opt_g = torch.optim.Adam(G.parameters(), lr=1e-3)
opt_d = torch.optim.Adam(D.parameters(), lr=1e-3)
one, zero = torch.ones(64, 1), torch.zeros(64, 1)
bce = F.binary_cross_entropy_with_logits
for step in range(100):
    real = torch.randn(64, 2) * 0.2 + 1
    opt_d.zero_grad()
    fake = G(torch.randn(64, 8))
    loss_d = bce(D(real), one) + bce(D(fake.detach()), zero)
    loss_d.backward()
    opt_d.step()
    opt_g.zero_grad()
    loss_g = bce(D(fake.detach()), one)
    loss_g.backward()
    opt_g.step()
print(loss_d.item(), loss_g.item())
