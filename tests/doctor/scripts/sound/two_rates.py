"""Two optimizers: the table of words gathers gradients over four batches, the rest steps with each; norms are frozen halfway."""

import torch
from torch import nn

torch.manual_seed(0)
words = nn.EmbeddingBag(100, 16)
head = nn.Sequential(nn.BatchNorm1d(16), nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4))
slow = torch.optim.SGD(words.parameters(), lr=0.05)
fast = torch.optim.AdamW(head.parameters(), lr=2e-3)
text = torch.randint(0, 100, (512, 6))
label = text[:, 0] % 4
for step in range(1, 81):
    pick = torch.randint(0, 512, (64,))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(head(words(text[pick])), label[pick])
    loss.backward()
    fast.step()
    fast.zero_grad()
    if step % 4 == 0:
        for parameter in words.parameters():
            parameter.grad /= 4
        slow.step()
        slow.zero_grad()
    if step == 40:
        head[0].eval()
    if step % 20 == 0:
        print(step, round(loss.item(), 4))
