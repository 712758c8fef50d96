"""A small training, for the tests of the doctor and of `first_nonfinite`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from amp_course.debugging.nonfinite import Nonfinite, first_nonfinite
from amp_course.diagnosis.report import Report
from amp_course.doctor import doctor


class SmallTraining:
    """A net, its optimizer, a scaler, four batches, and two steps: `scaled` and `plain`."""

    def __init__(self, scale: float = 1024.0, fused: bool = False) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, fused=fused)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        self.batches = [(torch.randn(8, 8), torch.randint(0, 3, (8,))) for _ in range(4)]

    def scaled(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        self.optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = cross_entropy(self.model(x), y)
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return {"loss": loss.detach(), "grad_norm": norm}

    def plain(self, x: Tensor, y: Tensor) -> Tensor:
        self.optimizer.zero_grad()
        loss = cross_entropy(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def first(self, step: Any, steps: int = 4) -> Nonfinite:
        objects = {"model": self.model, "optimizer": self.optimizer, "scaler": self.scaler}
        return first_nonfinite(step, self.batches, **objects, steps=steps)

    def examine(self, step: Any, **options: Any) -> Report:
        objects = self.model, step, self.batches, self.optimizer, self.scaler
        return doctor(*objects, **{"timing": 0.0} | options)
