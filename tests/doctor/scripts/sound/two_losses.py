# Two tasks share a trunk; each loss has a backward of its own, then one step.
import torch
from torch import nn

torch.manual_seed(11)


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(9, 32), nn.ReLU())
        self.kind = nn.Linear(32, 3)
        self.size = nn.Linear(32, 1)

    def forward(self, x):
        h = self.trunk(x)
        return self.kind(h), self.size(h)[:, 0]


model = Shared()
optimizer = torch.optim.RMSprop(model.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=1024)
a, b = torch.randn(9, 3), torch.randn(9)

for step in range(1, 81):
    x = torch.randn(40, 9)
    optimizer.zero_grad(set_to_none=False)
    with torch.autocast("cpu", dtype=torch.float16):
        kind, size = model(x)
        loss_kind = nn.functional.cross_entropy(kind.float(), (x @ a).argmax(1))
        loss_size = nn.functional.smooth_l1_loss(size.float(), (x @ b).tanh())
    scaler.scale(loss_kind).backward(retain_graph=True)
    scaler.scale(0.5 * loss_size).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 0:
        print(step, loss_kind.item(), loss_size.item())
