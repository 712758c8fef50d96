"""Eight recorded trainings in fp16: one is sound, and each of the others has one fault."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from amp_course.kit.data import digits
from amp_course.kit.random_state import same_random_state
from amp_course.kit.threads import one_thread

SOUND = "nothing"
# The letter of a curve → its fault, if possible by the doctor's name for it
FAULTS = {
    "A": "autocast-left-open",
    "B": SOUND,
    "C": "still-scaled",
    "D": "clipped-while-scaled",
    "E": "learning-rate-too-high",
    "F": "never-cleared",
    "G": "nan-in-data",
    "H": "beyond-fp16",
}
STEPS = 120
_RATE, _TOO_HIGH = 0.5, 8.0  # learning rates
_BAD_BATCHES = (40, 70, 71)
_UNIT = 8e3  # the model's outputs are this many times the logits


@dataclass(frozen=True)
class Curve:
    """What a training's log shows, a number for each step.

    losses:    as computed, inf and NaN included
    scales:    the loss scale after the step
    distances: of all weights from where they began, in units of their norm there
    """

    losses: tuple[float, ...]
    scales: tuple[float, ...]
    distances: tuple[float, ...]


def record_curves() -> dict[str, Curve]:
    """Run the eight trainings and return their curves by letter."""
    return {letter: _train(fault) for letter, fault in FAULTS.items()}


def _train(fault: str) -> Curve:
    """Train a small net on digits in fp16, with one of `FAULTS`."""
    with same_random_state(), one_thread():
        torch.manual_seed(0)
        layers = nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10)
        model = nn.Sequential(*layers)
        start = _vector(model)
        rate = _TOO_HIGH if fault == "learning-rate-too-high" else _RATE
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        scaler = torch.amp.GradScaler("cpu", growth_interval=10)
        rows = []
        # While this region is open, the regions inside reuse its cached casts.
        with _region() if fault == "autocast-left-open" else contextlib.nullcontext():
            for number, (inputs, targets) in enumerate(_batches(), 1):
                if fault == "nan-in-data" and number in _BAD_BATCHES:
                    inputs[0, 0] = torch.nan
                with _region():
                    outputs = model(inputs)
                    if fault == "beyond-fp16":
                        outputs = (outputs * _UNIT) / _UNIT
                    loss = cross_entropy(outputs, targets)
                if fault != "never-cleared":
                    optimizer.zero_grad()
                scaler.scale(loss).backward()
                if fault == "clipped-while-scaled":
                    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                if fault == "still-scaled":
                    optimizer.step()
                else:
                    scaler.step(optimizer)
                    scaler.update()
                distance = float((_vector(model) - start).norm() / start.norm())
                rows.append((loss.item(), scaler.get_scale(), distance))
    return Curve(*zip(*rows, strict=True))


def describe(curve: Curve) -> str:
    """Describe a curve, for people who cannot see it."""
    finite = [loss for loss in curve.losses if math.isfinite(loss)]
    gone = len(curve.losses) - len(finite)
    nonfinite = f", {gone} of {len(curve.losses)} losses are inf or NaN" if gone else ""
    return (
        f"loss {finite[0]:.2g} to {finite[-1]:.2g}{nonfinite}; loss scale {curve.scales[0]:.2g} to "
        f"{curve.scales[-1]:.2g}; distance of the weights {curve.distances[-1]:.2g} at the end"
    )


def _region() -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.float16)


def _batches() -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    pixels, classes = digits().train_x.flatten(1)[:512], digits().train_y[:512]
    for _ in range(STEPS):
        chosen = torch.randint(0, 512, (64,), generator=generator)
        yield pixels[chosen], classes[chosen]


def _vector(model: nn.Module) -> Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()
