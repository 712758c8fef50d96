# fault: clipped-while-scaled
"""Sentiment of made-up sentences, from a bag of words."""

import torch
from torch import nn

torch.manual_seed(0)
VOCABULARY, LENGTH = 40, 12


class BagOfWords(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag = nn.Embedding(VOCABULARY, 32)
        self.mlp = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))

    def forward(self, words):
        return self.mlp(self.bag(words).mean(1))


def backward_and_step(loss, model, optimizer, scaler, max_norm):
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return norm


mood = torch.randn(VOCABULARY)
model = BagOfWords()
optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
scaler = torch.amp.GradScaler("cpu")
for step in range(60):
    words = torch.randint(VOCABULARY, (64, LENGTH))
    label = (mood[words].sum(1) > 0).long()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.cross_entropy(model(words), label)
    backward_and_step(loss, model, optimizer, scaler, max_norm=1.0)
    if step % 10 == 0:
        print(f"{step:3d} {loss.item():.4f}")
