# EXPECTED: exit 0. The schedule is counted in micro-batches on purpose and ends exactly with the
# training.
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
EPOCHS, BATCHES, ACCUMULATE = 4, 40, 4
model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.LambdaLR(
    optimizer, lambda k: max(0.0, 1 - k / (EPOCHS * BATCHES))
)
x = torch.randn(512, 20)
y = (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()
for epoch in range(EPOCHS):
    for k in range(BATCHES):
        i = torch.randint(0, 512, (8,))
        loss = F.cross_entropy(model(x[i]), y[i]) / ACCUMULATE
        loss.backward()
        if (k + 1) % ACCUMULATE == 0:
            optimizer.step()
            optimizer.zero_grad()
        schedule.step()
print(loss.item(), optimizer.param_groups[0]["lr"])
