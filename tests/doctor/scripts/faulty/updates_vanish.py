# fault: updates-vanish
"""Fine-tunes in bf16 to save memory."""

import torch
from torch import nn


class Adapter(nn.Module):
    def __init__(self, width=64, classes=5):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.mix = nn.Linear(width, width)
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        return self.head(torch.tanh(self.mix(x * self.scale)))


torch.manual_seed(0)
model = Adapter().to(torch.bfloat16)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
features = torch.randn(512, 64)
labels = (features @ torch.randn(64, 5)).argmax(1)
for step in range(80):
    i = torch.randint(512, (64,))
    loss = nn.functional.cross_entropy(model(features[i].bfloat16()).float(), labels[i])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 10 == 0:
        print(f"step {step:3d} loss {loss.item():.4f}")
