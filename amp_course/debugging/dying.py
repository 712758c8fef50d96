"""A training that dies in fp16, recorded while it does: digits, four residual blocks without a norm, and a rate a little too high."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from amp_course.debugging.ranges import RangeWatch, watch_ranges
from amp_course.kit.data import digits
from amp_course.kit.random_state import same_random_state


class Block(nn.Module):
    """`x + shrink(relu(widen(x))²)`: the square is what grows."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.widen, self.act, self.shrink = nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of x's shape, `(batch, width)`."""
        return x + self.shrink(self.act(self.widen(x)).square())


class Net(nn.Sequential):
    """Four blocks between two linear layers."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.stem = nn.Linear(64, width)
        for number in range(1, 5):
            self.add_module(f"block{number}", Block(width))
        self.head = nn.Linear(width, 10)


@dataclass(frozen=True)
class DyingRun:
    """What was recorded. losses: one for each step; skipped: steps that the scaler skipped, from 1; death: the first step whose
    loss is not finite, None if it lived
    """

    ranges: RangeWatch
    losses: tuple[float, ...]
    skipped: tuple[int, ...]

    @property
    def death(self) -> int | None:
        """The first step whose loss is not finite; None if it lives."""
        return next((number for number, loss in enumerate(self.losses, 1) if not math.isfinite(loss)), None)


def record_dying_run(rate: float = 0.012, steps: int = 120, *, every: int = 1, seed: int = 0) -> DyingRun:
    """Train in fp16 until some steps after the loss is not finite; every `every`th forward pass is measured."""
    losses, skipped = [], []
    with same_random_state():
        torch.manual_seed(seed)
        model, data = Net(), digits()
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
        generator = torch.Generator().manual_seed(seed)
        with watch_ranges(model, torch.float16, every=every, bell=-math.inf) as ranges:
            for number in range(1, steps + 1):
                rows = torch.randint(len(data.train_y), (32,), generator=generator)
                with torch.autocast("cpu", dtype=torch.float16):
                    loss = cross_entropy(model(data.train_x[rows].flatten(1)), data.train_y[rows])
                optimizer.zero_grad()
                scaler.scale(loss).backward()
                before = scaler.get_scale()
                scaler.step(optimizer)
                scaler.update()
                if scaler.get_scale() < before:
                    skipped.append(number)
                losses.append(loss.item())
                if sum(not math.isfinite(one) for one in losses) >= 6:
                    break
    return DyingRun(ranges, tuple(losses), tuple(skipped))
