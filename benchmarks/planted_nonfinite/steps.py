"""What a planted fault is, and the small training step that each is planted in."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

INF = float("inf")


@dataclass(frozen=True)
class Setup:
    """A training step without arguments, and what it trains with."""

    step: Callable[[], Any]
    model: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler | None = None


@dataclass(frozen=True)
class Planted:
    """A fault.

    make:   builds the step; what it draws is seeded
    ops:    torch's names for the op that makes the first inf or NaN; some versions or devices have
            another
    module: path of the module in which it runs, "" outside of any
    phase:  "forward", "backward" or "optimizer"
    """

    make: Callable[[], Setup]
    ops: tuple[str, ...]
    module: str = "body"
    phase: str = "forward"

    @property
    def name(self) -> str:
        """In words, as a table lists it. Example: "log of a negative number" """
        return self.make.__name__.replace("_", " ")


class Body(nn.Module):
    """A module that applies a function."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        """Apply it."""
        return self.function(x)


def training(
    function: Callable[[Tensor], Tensor] = torch.tanh,
    *,
    scale: float = 1.0,
    dtype: torch.dtype | None = None,
    loss: Callable[[Tensor], Tensor] = lambda output: output.float().square().mean(),
    optimizer: Callable[[Any], torch.optim.Optimizer] = lambda weights: torch.optim.SGD(
        weights, lr=0.01
    ),
    before_step: Callable[[nn.Module], Any] = lambda model: None,
    scaler: torch.amp.GradScaler | None = None,
    body: nn.Module | None = None,
) -> Setup:
    """Build a step of first → body → last on one batch of 4 · 8 numbers;
    `scale` multiplies what reaches the body.
    """
    torch.manual_seed(0)
    first, last = nn.Linear(8, 8), nn.Linear(8, 3)
    model = nn.Sequential(OrderedDict(first=first, body=body or Body(function), last=last))
    inputs = torch.randn(4, 8)
    with torch.no_grad():
        first.weight.mul_(scale)
        first.bias.mul_(scale)
    stepper = optimizer(model.parameters())

    def step() -> None:
        region = torch.autocast("cpu", dtype=dtype) if dtype else contextlib.nullcontext()
        with region:
            value = loss(model(inputs))
        (scaler.scale(value) if scaler else value).backward()
        before_step(model)
        if scaler:
            scaler.step(stepper)
            scaler.update()
        else:
            stepper.step()
        stepper.zero_grad()

    return Setup(step, model, stepper, scaler)
