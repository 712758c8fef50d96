# EXPECTED: with --ranks 2: ranks-drift. A DDP wrapper is made, but the bare model is called.
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
r = dist.get_rank()
torch.manual_seed(0)
m = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 2))
d = DDP(m)
o = torch.optim.SGD(m.parameters(), lr=0.1)
torch.manual_seed(r)
for k in range(60):
    x = torch.randn(16, 10)
    y = (x[:, 0] > 0).long()
    o.zero_grad()
    l = nn.functional.cross_entropy(m(x), y)  # m, not d
    l.backward()
    o.step()
print(r, l.item())
dist.destroy_process_group()
