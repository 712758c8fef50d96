# fault: no-autocast
"""A small trainer with a configuration, mixed precision among it."""

from contextlib import nullcontext

import torch
from torch import nn

CONFIG = {"lr": 5e-3, "steps": 60, "batch": 64, "use_amp": True, "amp_dtype": "float16"}


class AmpTrainer:
    def __init__(self, model, config):
        self.model, self.config = model, config
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])
        self.scaler = torch.amp.GradScaler("cpu", enabled=config["use_amp"])

    def precision(self):
        if self.config.get("amp"):
            return torch.autocast("cpu", dtype=getattr(torch, self.config["amp_dtype"]))
        return nullcontext()

    def training_step(self, batch):
        x, y = batch
        with self.precision():
            return nn.functional.cross_entropy(self.model(x), y)

    def fit(self, draw):
        for step in range(self.config["steps"]):
            self.optimizer.zero_grad()
            loss = self.training_step(draw(self.config["batch"]))
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            if step % 10 == 0:
                print(f"step {step} | loss {loss.item():.4f} | scale {self.scaler.get_scale():g}")


if __name__ == "__main__":
    torch.manual_seed(0)
    w = torch.randn(10, 3)

    def draw(n):
        x = torch.randn(n, 10)
        return x, (x @ w).argmax(1)

    AmpTrainer(nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 3)), CONFIG).fit(draw)
