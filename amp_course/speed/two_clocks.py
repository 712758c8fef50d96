"""Host and GPU on one time axis: when each op of a step is launched, and when it runs.

The host launches ops one after the other, with some Python between two steps; the GPU runs them in
that order, each once it has been launched and the one before it is done. A card's roofline says how
long an op runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from amp_course.speed.cards import find_card
from amp_course.speed.counting import OpCall
from amp_course.speed.opening import step_calls
from amp_course.speed.roofline import format_of

CARD = "H100 SXM"
PYTHON = 50e-6  # assumed: what the host does between two steps
Span = tuple[float, float]  # begin and end, in seconds


@dataclass(frozen=True)
class Clocks:
    """What host and GPU do in some steps, one after the other.

    waits: when the host launches nothing, because it waits for a value or for a batch
    """

    name: str
    host: tuple[Span, ...]
    waits: tuple[Span, ...]
    gpu: tuple[Span, ...]

    @property
    def seconds(self) -> float:
        return max(end for _, end in (*self.host, *self.waits, *self.gpu))

    @property
    def busy(self) -> float:
        """The share of the time in which the GPU runs an op."""
        return sum(end - begin for begin, end in self.gpu) / self.seconds


def schedule(
    name: str,
    runs: Sequence[float],
    launch: float,
    *,
    steps: int = 3,
    read: bool = False,
    loading: float = 0.0,
) -> Clocks:
    """Return when each op of some steps is launched and when it runs.

    runs:    how long each op of a step runs on the GPU, in seconds
    launch:  how long the host takes to launch one
    read:    True if the host reads a value at the end of each step, as `.item()` does
    loading: how long the host waits for each batch
    """
    host, waits, gpu = list[Span](), list[Span](), list[Span]()
    now = free = 0.0  # the host's clock, and when the GPU is free
    for _ in range(steps):
        now += PYTHON
        if loading:
            waits.append((now, now + loading))
            now += loading
        for seconds in runs:
            host.append((now, now + launch))
            now += launch
            gpu.append((max(now, free), max(now, free) + seconds))
            free = gpu[-1][1]
        if read:
            waits.append((now, max(now, free)))
            now = max(now, free)
    return Clocks(name, tuple(host), tuple(waits), tuple(gpu))


def four_steps() -> tuple[Clocks, ...]:
    """Return forward and backward of `SimpleNet` in bf16 on an H100, as its roofline has them:
    large, small, with a value read after each step, and with a loader slower than the step.
    """
    card = find_card(CARD).roofline()

    def seconds(call: OpCall) -> float:
        parts = card.parts(call.flops, call.bytes, format_of(call))
        return max(parts["memory"], parts["compute"])

    def runs(width: int, batch: int) -> list[float]:
        return [seconds(call) for call in step_calls(width, torch.bfloat16, batch) if call.bytes]

    large, small, launch = runs(2048, 2048), runs(256, 64), card.launch_seconds
    return (
        schedule("enough work in each op", large, launch),
        schedule("too little work in each op", small, launch),
        schedule("a value is read after each step", large, launch, read=True),
        schedule("the loader is slower than the step", large, launch, loading=sum(large)),
    )
