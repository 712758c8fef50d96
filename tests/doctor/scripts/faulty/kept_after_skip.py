# fault: kept-after-skip
import torch
from torch import nn


class Trainer:
    def __init__(self, model, lr=1e-2):
        self.model = model
        self.opt = torch.optim.Adam(model.parameters(), lr=lr)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**22)
        self.steps = 0

    def loss(self, x, y):
        with torch.autocast("cpu", dtype=torch.float16):
            logits = self.model(x)
        return nn.functional.cross_entropy(logits.float(), y)

    def step(self, x, y):
        loss = self.loss(x, y)
        self.scaler.scale(loss).backward()
        scale = self.scaler.get_scale()
        self.scaler.step(self.opt)
        self.scaler.update()
        if self.scaler.get_scale() >= scale:  # a step was made
            self.steps += 1
            self.opt.zero_grad()
        return loss.item()


torch.manual_seed(0)
trainer = Trainer(nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 3)))
w = torch.randn(12, 3)
for i in range(60):
    x = torch.randn(64, 12)
    loss = trainer.step(x, (x @ w).argmax(1))
    if i % 6 == 0:
        print(f"{i:2d} loss {loss:.4f}, {trainer.steps} steps made, scale {trainer.scaler.get_scale():g}")
