"""A training whose loss spikes at one bad batch, with three ways to handle it."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from amp_course.kit.data import digits
from amp_course.kit.random_state import same_random_state
from amp_course.kit.threads import one_thread

Guard = Literal["none", "clip", "skip"]
BAD_STEP, STEPS = 60, 120
_TOO_LARGE = 5.0  # "skip" leaves out an update whose norm is this many times the median so far


@dataclass(frozen=True)
class Spike:
    """A recorded training: its losses, and the norms of all gradients before they are clipped."""

    guard: Guard
    losses: tuple[float, ...]
    norms: tuple[float, ...]


def record_spike(guard: Guard) -> Spike:
    """Train a small net on digits in bf16; one batch has wrong labels and pixels that are 10 times
    too large.

    guard: "clip" to a norm of 1, "skip" an update whose norm is 5 times the median, or "none"
    """
    pixels, classes = digits().train_x.flatten(1)[:512], digits().train_y[:512]
    losses, norms = list[float](), list[float]()
    with same_random_state(), one_thread():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
        for step in range(1, STEPS + 1):
            chosen = torch.randint(0, 512, (64,))
            inputs, targets = pixels[chosen], classes[chosen]
            if step == BAD_STEP:
                inputs, targets = 10 * inputs, (targets + 1) % 10
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            limit = 1.0 if guard == "clip" else float("inf")
            norm = nn.utils.clip_grad_norm_(model.parameters(), limit).item()
            typical = statistics.median(norms) if norms else norm
            if guard != "skip" or norm <= _TOO_LARGE * typical:
                optimizer.step()
            losses.append(loss.item())
            norms.append(norm)
    return Spike(guard, tuple(losses), tuple(norms))
