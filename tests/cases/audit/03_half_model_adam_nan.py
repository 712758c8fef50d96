# EXPECTED: fp16-parameters, or any finding: Adam's eps of 1e-8 is 0 in fp16, and one step makes all
# weights NaN.
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tests.cases.tools import audit

torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 5)).half()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
batches = [(torch.randn(16, 20), torch.randint(5, (16,))) for _ in range(4)]


def step(x, y):
    loss = cross_entropy(model(x.half()), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


print(audit(step, model=model, optimizer=optimizer, batches=batches))
step(*batches[0])
print("finite after one step:", [bool(p.isfinite().all()) for p in model.parameters()])
