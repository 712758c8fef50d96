"""What an audit looks at and what it writes down: the reader's live training, and the record of one of its updates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

Batch = Sequence[Any]
Flat = list[Tensor]  # one flat float32 gradient an optimizer


@dataclass(frozen=True)
class NotedCall:
    """One call of a scaler, an optimizer or a scheduler: its name, whose (the optimizer's number), in which micro-batch."""

    name: str  # "scale", "unscale", "scaler.step", "update", "step", "scheduler"
    number: int
    micro: int


@dataclass
class Seen:
    """What one update did."""

    scale: float
    scale_after: float = 1.0
    calls: list[NotedCall] = field(default_factory=list)
    stepped_with: dict[int, Flat] = field(default_factory=dict)  # optimizer → its gradients, one for each step taken
    backwards: int = 0  # parameters' gradients that arrived
    contributions: list[Flat] = field(default_factory=list)  # what each micro-batch's backward added, still scaled
    references: list[Flat] = field(default_factory=list)  # the fp32 gradient of each micro-batch
    rounded: list[Flat] = field(default_factory=list)  # the same loss under autocast
    reference_error: str = ""
    in_autocast: bool = False
    left_open: bool = False
    stale: float = 0.0  # the largest gradient found before the first backward
    lost: bool = False  # what an earlier micro-batch added was gone when the next one's gradient arrived
    changed: dict[int, bool] = field(default_factory=dict)  # optimizer → did a weight change
    finite: bool = True  # every gradient that arrived
    dtypes: set[torch.dtype] = field(default_factory=set)  # of the layers' outputs
    modes: dict[nn.Module, bool] = field(default_factory=dict)  # was a layer in training mode when it ran
    error: Exception | None = None

    def count(self, name: str, number: int | None = None) -> int:
        """Return how often something was called, by one optimizer or by all."""
        return sum(call.name == name and number in (None, call.number) for call in self.calls)

    def first(self, name: str, number: int | None = None) -> int | None:
        """Return the place of a call in the order of calls, or None."""
        places = (n for n, call in enumerate(self.calls) if call.name == name and number in (None, call.number))
        return next(places, None)


@dataclass(frozen=True)
class Meddling:
    """What is done to gradients as they arrive: a factor for each micro-batch, and optimizers that get an inf in the last one."""

    factors: Callable[[int], float] | None = None
    poisoned: tuple[int, ...] = ()


@dataclass
class Training:
    """The reader's live objects."""

    train_step: Callable[..., Any]
    models: Sequence[nn.Module]
    optimizers: Sequence[torch.optim.Optimizer]
    scaler: torch.amp.GradScaler | None
    schedulers: Sequence[Any]
    loss: Callable[..., Any] | None
    hint_last: bool = False  # the step takes `last=`
    modes: dict[nn.Module, bool] = field(default_factory=dict)  # what the step sets its layers to, if not as they were

    def __post_init__(self) -> None:
        self.parameters = [[p for g in o.param_groups for p in g["params"]] for o in self.optimizers]

    @property
    def device_type(self) -> str:
        """The kind of device the parameters are on."""
        return next((p.device.type for held in self.parameters for p in held), "cpu")

    def scale(self) -> float:
        """The loss scale of now, 1.0 without a scaler."""
        return 1.0 if self.scaler is None else float(self.scaler.get_scale())

    def set_scale(self, scale: float) -> None:
        """Set the loss scale, whether or not the scaler has made its tensor."""
        if self.scaler is not None:
            self.scaler.load_state_dict({**self.scaler.state_dict(), "scale": scale})
