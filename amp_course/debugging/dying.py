"""A training run that dies in fp16, and its record: its targets are beyond the end of the format.

The model predicts how much ink a digit takes: the sum of the grey levels of its 32 × 32 scan,
around 80,000, while fp16 ends at 65,504. The loss falls as it should, and the outputs grow towards
the targets. So do the activations before them, the last block's first. Once an output overflows,
the loss is inf and the scaler skips the step, and then every later one: all steps see the same
pictures, so nothing changes any more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from amp_course.debugging.headroom import DivergingRun
from amp_course.debugging.ranges import watch_ranges
from amp_course.kit.data import digits
from amp_course.kit.random_state import same_random_state
from amp_course.kit.threads import one_thread

STEPS_AFTER_DEATH = 8  # still recorded, to show that it does not recover
_PICTURES = 32  # few, and all of them in every step
# A pixel of `digits()` with value 1 stands for 4 × 4 pixels of the scan, all of them with ink.
_GREY_LEVELS = 16 * 255


class Block(nn.Module):
    """`x + shrink(act(widen(x)))`, without a norm: nothing keeps its values small."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.widen, self.act = nn.Linear(width, 2 * width), nn.ReLU()
        self.shrink = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of x's shape, `(batch, width)`."""
        return x + self.shrink(self.act(self.widen(x)))


class Net(nn.Sequential):
    """A linear layer, four blocks, and the mean of the last outputs: (batch, 64) → (batch, 1)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(64, 16)
        for number in range(1, 5):
            self.add_module(f"block{number}", Block(16))
        self.head = nn.AdaptiveAvgPool1d(1)


@dataclass(frozen=True)
class DyingTraining:
    """The training as the tools of the chapter take it: a step to call, and what it changes.

    batch: the pictures (32, 64) and the ink of each (32, 1), the same in each step
    """

    model: Net
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    batch: tuple[Tensor, Tensor]

    def step(self, pixels: Tensor, ink: Tensor) -> Tensor:
        """Train on a batch; return its loss, the mean squared relative error."""
        with torch.autocast("cpu", dtype=torch.float16):
            guess = self.model(pixels)
        loss = (guess.float() / ink - 1).square().mean()  # in fp32
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss


def start_dying_run(seed: int = 0) -> DyingTraining:
    """Return the training before its first step; the seed is for the weights."""
    with same_random_state():
        torch.manual_seed(seed)
        model = Net()
    pixels = digits().train_x[:_PICTURES].flatten(1)
    ink = _GREY_LEVELS * pixels.sum(1, keepdim=True)
    # With this rate the run dies after about 45 steps, with half of it after more than 60.
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.004)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    return DyingTraining(model, optimizer, scaler, (pixels, ink))


def record_dying_run(steps: int = 60, seed: int = 0) -> DivergingRun:
    """Train in fp16 for `steps` steps, or until 8 steps after the first loss that is not finite."""
    losses: list[float] = []
    skipped: list[int] = []
    training = start_dying_run(seed)
    ranges = watch_ranges(training.model, torch.float16, every=1, alert=-math.inf)
    with one_thread(), ranges:  # with tensors this small, threads only wait for each other
        for number in range(1, steps + 1):
            before = training.scaler.get_scale()
            losses.append(training.step(*training.batch).item())
            if training.scaler.get_scale() < before:
                skipped.append(number)
            if not all(map(math.isfinite, losses[:-STEPS_AFTER_DEATH])):
                break
    return DivergingRun(ranges, tuple(losses), tuple(skipped))
