# fault: scheduler-before-optimizer
import torch
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR

torch.manual_seed(0)
STEPS = 60
x = torch.randn(800, 11)
y = (x @ torch.randn(11, 4)).argmax(1)
model = nn.Sequential(nn.Linear(11, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
scheduler = OneCycleLR(optimizer, max_lr=0.3, total_steps=STEPS + 1)

for step in range(STEPS):
    pick = torch.randint(800, (80,))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(model(x[pick]), y[pick])
    optimizer.zero_grad()
    loss.backward()
    scheduler.step()
    optimizer.step()
    if step % 10 == 0:
        print(step, loss.item(), scheduler.get_last_lr())
