"""Train under autocast with a scaler, and record its scale, the loss and the skipped steps."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy


@dataclass(frozen=True)
class Timeline:
    """What a run did, step by step.

    scales:  the loss scale that the step used
    losses:  the loss, unscaled
    skipped: True if the scaler did not step the optimizer, because a gradient was inf or NaN
    """

    scales: tuple[float, ...]
    losses: tuple[float, ...]
    skipped: tuple[bool, ...]


def record_timeline(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: Any,
    batches: Iterable[tuple[Tensor, Tensor]],
    overflow_at: Collection[int] = (),
) -> Timeline:
    """Train a classifier on the batches in fp16, and return what happened.

    scaler:      a `DynamicScaler` or `torch.amp.GradScaler`
    batches:     x of any shape that the model takes, y (batch,) of classes
    overflow_at: steps, counted from 0, whose input is so large that fp16 overflows: an outlier in
                 the data

    A hook on the optimizer notices skips; they are not guessed from the scale. Raises ValueError if
    there is no batch.
    Example: record_timeline(model, optimizer, DynamicScaler("cpu"), batches,
             overflow_at={30}).skipped[30] → True
    """
    steps: list[int] = []
    hook = optimizer.register_step_post_hook(lambda *_: steps.append(1))
    scales, losses, skipped = [], [], []
    try:
        for number, (x, y) in enumerate(batches):
            outlier = torch.finfo(torch.float16).max if number in overflow_at else 1.0
            scales.append(scaler.get_scale())
            before = len(steps)
            with torch.autocast(x.device.type, dtype=torch.float16):
                loss = cross_entropy(model(x * outlier), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            losses.append(loss.item())
            skipped.append(len(steps) == before)
    finally:
        hook.remove()
    if not scales:
        raise ValueError(
            "there was no batch to train on. Was the generator used up? Make a new one, or pass a "
            "list."
        )
    return Timeline(tuple(scales), tuple(losses), tuple(skipped))
