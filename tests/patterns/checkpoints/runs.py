"""A run with all that can be forgotten: batch norm, dropout, Adam, a moving scale, a schedule."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from amp_course.patterns import (
    Run,
)


def batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    return torch.randn(8, 16, generator=generator), torch.randint(0, 5, (8,), generator=generator)


def build(every: int = 1, amp: bool = True, width: int = 24) -> Run:
    """A run with all that can be forgotten: batch norm, dropout, Adam, a moving scale,
    a schedule.
    """
    state = torch.get_rng_state()
    torch.manual_seed(5)
    model = nn.Sequential(
        nn.Linear(16, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.3), nn.Linear(width, 5)
    )
    torch.set_rng_state(state)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=2, enabled=amp)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)

    def step(number: int) -> None:
        x, y = batch(number)
        with torch.autocast("cpu", dtype=torch.float16, enabled=amp):
            loss = cross_entropy(model(x), y) / every
        scaler.scale(loss).backward()
        if (number + 1) % every == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            scheduler.step()

    return Run(step, model, optimizer, scaler, scheduler)


def objects(run: Run) -> dict[str, Any]:
    return {name: getattr(run, name) for name in ("model", "optimizer", "scaler", "scheduler")}


def weights(run: Run) -> torch.Tensor:
    return torch.cat([v.flatten().float() for v in run.model.state_dict().values()])


def _half_run(amp: bool, every: int, steps: int) -> Run:
    torch.manual_seed(1)
    run = build(every, amp)
    for number in range(steps):
        run.step(number)
    return run
