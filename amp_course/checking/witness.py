"""Stand beside a training step and write down what it does: the checks judge a loop by this, not by its text.

A `Scene` is a small training with a watched model, loss, optimizer and scaler. They are the real ones of torch,
with notes taken on the way.
"""

from __future__ import annotations

import secrets
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

Event = str  # "forward", "loss", "backward", "step", "zero_grad", "scale", "scaler.step", "unscale", "update"


@dataclass
class Notes:
    """What was seen, in order, with the dtypes and scales of interest."""

    events: list[Event] = field(default_factory=list)
    layer_dtypes: list[torch.dtype] = field(default_factory=list)  # of the first Linear's output, one a forward
    loss_in_autocast: list[bool] = field(default_factory=list)
    loss_dtypes: list[torch.dtype] = field(default_factory=list)
    backward_in_autocast: list[bool] = field(default_factory=list)
    backward_scales: list[float] = field(default_factory=list)  # the gradient that entered the loss
    step_gradients: list[list[Tensor | None]] = field(default_factory=list)  # at each optimizer.step
    step_weights: list[list[Tensor]] = field(default_factory=list)  # as each optimizer.step finds them
    stray_steps: int = 0  # optimizer.step() called by hand while a scaler was there

    def count(self) -> Counter[Event]:
        """Return how often each event was seen."""
        return Counter(self.events)

    def between(self, first: Event, then: Event, event: Event) -> bool:
        """Tell whether `event` ever came after a `first` and before the next `then`."""
        open_since = False
        for seen in self.events:
            if seen == event and open_since:
                return True
            open_since = seen == first or (open_since and seen != then)
        return False


class WatchedLoss:
    """Cross-entropy that notes whether autocast was on, in forward and in backward, and what scaled it."""

    def __init__(self, notes: Notes) -> None:
        self.notes = notes

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        loss = nn.functional.cross_entropy(outputs, targets)
        self.notes.events.append("loss")
        self.notes.loss_in_autocast.append(torch.is_autocast_enabled(outputs.device.type))
        self.notes.loss_dtypes.append(loss.dtype)
        if loss.requires_grad:
            loss.register_hook(self._backward)
        return loss

    def _backward(self, gradient: Tensor) -> None:
        self.notes.events.append("backward")
        self.notes.backward_in_autocast.append(torch.is_autocast_enabled(gradient.device.type))
        self.notes.backward_scales.append(gradient.item())


class WatchedSGD(torch.optim.SGD):
    """SGD that notes its calls and the gradients it was given."""

    def __init__(self, parameters: Any, lr: float, notes: Notes) -> None:
        super().__init__(parameters, lr=lr)
        self.notes = notes
        self.inside_scaler = False
        self.has_scaler = False

    def step(self, closure: Any = None) -> Any:
        self.notes.events.append("step")
        if self.has_scaler and not self.inside_scaler:
            self.notes.stray_steps += 1
        parameters = [p for group in self.param_groups for p in group["params"]]
        self.notes.step_weights.append([p.detach().clone() for p in parameters])
        self.notes.step_gradients.append([None if p.grad is None else p.grad.detach().clone() for p in parameters])
        return super().step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.notes.events.append("zero_grad")
        super().zero_grad(set_to_none)


class WatchedScaler(torch.amp.GradScaler):
    """PyTorch's scaler, with notes."""

    def __init__(self, notes: Notes, **options: Any) -> None:
        super().__init__("cpu", **options)
        self.notes = notes

    def scale(self, outputs: Any) -> Any:
        self.notes.events.append("scale")
        return super().scale(outputs)

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        self.notes.events.append("unscale")
        super().unscale_(optimizer)

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        self.notes.events.append("scaler.step")
        optimizer.inside_scaler = True
        try:
            return super().step(optimizer, *args, **kwargs)
        finally:
            optimizer.inside_scaler = False

    def update(self, new_scale: Any = None) -> None:
        self.notes.events.append("update")
        super().update(new_scale)


class Scene:
    """A small training that is watched: 16 features, 5 classes, batches of 8, drawn anew from `seed`.

    overflow_at: the numbers of the batches whose inputs are too large for fp16, so that gradients become NaN
    scaler:      options for a watched `GradScaler`, or None for no scaler
    """

    def __init__(
        self,
        seed: int,
        steps: int,
        *,
        overflow_at: tuple[int, ...] = (),
        scaler: dict[str, Any] | None = None,
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.notes = Notes()
        self.model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 5))
        for parameter in self.model.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.3
        self.model[0].register_forward_hook(self._saw_layer)
        self.batches = []
        for number in range(steps):
            inputs = torch.randn(8, 16, generator=generator)
            targets = torch.randint(0, 5, (8,), generator=generator)
            self.batches.append((inputs * (1e6 if number in overflow_at else 1.0), targets))
        self.loss_fn = WatchedLoss(self.notes)
        self.optimizer = WatchedSGD(self.model.parameters(), lr=0.1, notes=self.notes)
        self.scaler = None if scaler is None else WatchedScaler(self.notes, **scaler)
        self.optimizer.has_scaler = self.scaler is not None

    def _saw_layer(self, module: nn.Module, args: Any, output: Tensor) -> None:
        self.notes.events.append("forward")
        self.notes.layer_dtypes.append(output.dtype)

    def weights(self) -> list[Tensor]:
        """Return copies of the parameters as they are now."""
        return [parameter.detach().clone() for parameter in self.model.parameters()]


def drawn_seed() -> int:
    """Draw a seed that no answer can know."""
    return secrets.randbits(31)
