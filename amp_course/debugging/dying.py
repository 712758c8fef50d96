"""A training that dies in fp16, recorded while it does: what it has to predict lies beyond the end of the format.

It predicts how much ink a digit takes: the sum of the grey levels of its 32 × 32 scan, around 80,000 and for few digits below
fp16's 65,504. Its loss falls as it should, while the outputs grow towards the targets, and the activations before them, block
by block. The step in which the outputs overflow is the last one: from then on, the scaler skips every step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from amp_course.debugging.ranges import RangeWatch, watch_ranges
from amp_course.kit.data import digits
from amp_course.kit.random_state import same_random_state
from amp_course.kit.threads import one_thread

STEPS_AFTER_DEATH = 8  # that are still recorded, to show that it is for good
_GREY_LEVELS = 16 * 255  # of 16 pixels, which scikit-learn's digits count as one: 255 for each that has ink


class Block(nn.Module):
    """`x + shrink(act(widen(x)))`, without a norm: nothing keeps its values small."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.widen, self.act, self.shrink = nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of x's shape, `(batch, width)`."""
        return x + self.shrink(self.act(self.widen(x)))


class Net(nn.Sequential):
    """Four blocks between two linear layers: `(batch, 64)` → `(batch, 1)`."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.stem = nn.Linear(64, width)
        for number in range(1, 5):
            self.add_module(f"block{number}", Block(width))
        self.head = nn.Linear(width, 1)


@dataclass(frozen=True)
class DyingRun:
    """A recorded training.

    ranges:  what the values of its tensors did; its forward passes are the steps
    losses:  one for each step
    skipped: the steps that the scaler skipped, counted from 1
    """

    ranges: RangeWatch
    losses: tuple[float, ...]
    skipped: tuple[int, ...]

    @property
    def death(self) -> int | None:
        """The first step whose loss is not finite, counted from 1; None if the run lives."""
        return next((number for number, loss in enumerate(self.losses, 1) if not math.isfinite(loss)), None)


def record_dying_run(rate: float = 0.002, steps: int = 60, *, every: int = 1, seed: int = 0) -> DyingRun:
    """Train in fp16 until 8 steps after the first loss that is not finite, or for `steps` steps if it lives.

    rate:  AdamW's learning rate; 0.002 lives for about 40 steps, half of it for twice as long
    every: steps from one that is measured to the next
    """
    losses: list[float] = []
    skipped: list[int] = []
    with same_random_state(), one_thread():
        torch.manual_seed(seed)
        model, data = Net(), digits()
        pixels = data.train_x.flatten(1)
        ink = _GREY_LEVELS * pixels.sum(1, keepdim=True)
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
        with watch_ranges(model, torch.float16, every=every, bell=-math.inf) as ranges:
            for number in range(1, steps + 1):
                rows = torch.randint(len(pixels), (32,))
                with torch.autocast("cpu", dtype=torch.float16):
                    guess = model(pixels[rows])
                loss = (guess.float() / ink[rows] - 1).square().mean()  # of the relative errors
                optimizer.zero_grad()
                scaler.scale(loss).backward()
                before = scaler.get_scale()
                scaler.step(optimizer)
                scaler.update()
                if scaler.get_scale() < before:
                    skipped.append(number)
                losses.append(loss.item())
                if not all(map(math.isfinite, losses[: -STEPS_AFTER_DEATH or None])):
                    break
    return DyingRun(ranges, tuple(losses), tuple(skipped))
