"""Causal attention over padded sequences. Each row sees at least its own first token,
so no row is all -inf.
"""

import math

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x, lengths):
        b, t, c = x.shape
        q, k, v = (
            z.view(b, t, self.heads, -1).transpose(1, 2) for z in self.qkv(x).chunk(3, dim=-1)
        )
        scores = q @ k.transpose(-2, -1) / math.sqrt(c // self.heads)
        causal = torch.full((t, t), float("-inf")).triu(1)
        padded = torch.arange(t) >= lengths[:, None]
        scores = scores + causal.to(scores.dtype)
        scores = scores.masked_fill(padded[:, None, None, :], float("-inf"))
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, c))


class Model(nn.Module):
    def __init__(self, vocabulary=12, width=16):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(torch.randn(10, width) * 0.02)
        self.norm = nn.LayerNorm(width)
        self.attend = Attention(width, 2)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids, lengths):
        h = self.tokens(ids) + self.places
        return self.head(h + self.attend(self.norm(h), lengths))


torch.manual_seed(0)
torch.set_num_threads(1)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu")
for step in range(60):
    start = torch.randint(12, (16, 1))
    ids = (start + 5 * torch.arange(11)) % 12  # the task: add five
    lengths = torch.randint(2, 11, (16,))
    inputs, targets = ids[:, :-1], ids[:, 1:].clone()
    targets[torch.arange(10) >= lengths[:, None]] = -100
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        logits = model(inputs, lengths)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 0:
        print(step, loss.item())
