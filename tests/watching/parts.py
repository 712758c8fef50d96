"""A small training that the tests of the watchers watch."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from amp_course.watching.observer import Observer
from amp_course.watching.records import Intervention, Training


class Parts:
    """A model of 4 inputs and 3 classes with all that trains it."""

    def __init__(self, optimizer: type[torch.optim.Optimizer] = torch.optim.SGD) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
        self.optimizer = optimizer(self.model.parameters(), lr=0.1)  # type: ignore[call-arg]
        self.scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        self.x, self.y = torch.randn(5, 4), torch.randint(0, 3, (5,))

    def observer(self, intervention: Intervention | None = None) -> Observer:
        parts = [self.optimizer], [self.scaler], [self.scheduler]
        training = Training(lambda: None, [self.model], *parts)
        return Observer(training, intervention, graphs=True)

    def loss(self) -> Tensor:
        with torch.autocast("cpu", dtype=torch.float16):
            return cross_entropy(self.model(self.x), self.y)

    def step(self) -> None:
        scale = self.scaler.get_scale()
        self.scaler.scale(self.loss()).backward()
        self.scaler.unscale_(self.optimizer)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.scaler.get_scale() >= scale:
            self.scheduler.step()
        self.optimizer.zero_grad()
