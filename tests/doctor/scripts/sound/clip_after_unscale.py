"""A character model of a made-up text, its gradients clipped at their true size."""

import torch
from torch import nn


class CharModel(nn.Module):
    def __init__(self, vocabulary, width=48):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.mix = nn.Linear(3 * width, width)
        self.out = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        h = self.embed(tokens).flatten(1)
        return self.out(torch.relu(self.mix(h)))


text = "the quick brown fox jumps over the lazy dog. pack my box with five dozen liquor jugs. " * 12
letters = sorted(set(text))
codes = torch.tensor([letters.index(c) for c in text])
windows = codes.unfold(0, 4, 1)

torch.manual_seed(0)
model = CharModel(len(letters))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9, nesterov=True)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14, growth_interval=30)

for step in range(90):
    batch = windows[torch.randint(len(windows), (64,))]
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.float16):
        loss = nn.functional.cross_entropy(model(batch[:, :3]), batch[:, 3])
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.5)
    scaler.step(optimizer)
    scaler.update()
    if step % 15 == 0:
        print(f"{step:3d} loss {loss.item():.3f} norm {norm.item():.3f} scale {scaler.get_scale():g}")
