"""Hold the gradient that an optimizer was given against the true one, computed in fp32 on copies. Judges nothing."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from amp_course.checking.witness import Notes, WatchedSGD

CLOSE = 0.02  # relative distance; fp16 passes of the small models here stay within a tenth of it


class Witness:
    """Watches one optimizer: the gradients and the weights of its parameters at each step it takes."""

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float) -> None:
        """Make a watched SGD over the parameters; `optimizer` is what the answer is handed."""
        self.notes = Notes()
        self.optimizer = WatchedSGD(parameters, lr, self.notes)
        self.optimizer.has_scaler = True

    def gradients(self, step: int) -> Tensor | None:
        """Return the flat gradient at a step, or None if a parameter had none."""
        seen = self.notes.step_gradients[step]
        return None if any(g is None for g in seen) else flat(g for g in seen if g is not None)


def flat(tensors: Iterable[Tensor]) -> Tensor:
    """Lay tensors out in one long fp32 vector, detached."""
    return torch.cat([tensor.detach().float().flatten() for tensor in tensors])


def near(got: Tensor, want: Tensor, tolerance: float = CLOSE) -> bool:
    """Tell whether two vectors differ by less than a share of the second's norm; NaN and inf are near nothing."""
    return float((got - want).norm()) <= tolerance * float(want.norm())


def clipped(gradient: Tensor, max_norm: float) -> Tensor:
    """Shorten a vector to `max_norm` if it is longer: ([3, 4], 1.0) → [0.6, 0.8]."""
    return gradient * min(1.0, max_norm / float(gradient.norm()))


def true_gradients(models: Sequence[nn.Module], loss: Callable[..., Tensor]) -> list[Tensor]:
    """Return the flat fp32 gradient of `loss(*models)` for each model, computed on copies."""
    copies: list[Any] = [copy.deepcopy(model).float() for model in models]
    for one in copies:
        one.requires_grad_(True).zero_grad()
    with torch.enable_grad():
        loss(*copies).backward()
    return [flat(torch.zeros_like(p) if p.grad is None else p.grad for p in one.parameters()) for one in copies]
