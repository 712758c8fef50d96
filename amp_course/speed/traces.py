"""Simulated traces of training steps: where the time of a step goes, on the host and on the GPU.

The host loads a batch, launches kernels one after the other, and now and then waits for a value.
The GPU works through the kernels in order. Since both are simulated, the numbers of a trace are
consistent, and a step can be run again with one cause fixed.
"""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

_KINDS = FP32, LOW, CAST, OTHER = "fp32 matmul", "16-bit matmul", "cast", "other"  # of kernel
DATA, LAUNCH, SYNC, SLOW_FORMAT, MEMORY = "data", "launch", "sync", "fp32", "memory"
BOTTLENECKS = (DATA, LAUNCH, SYNC, SLOW_FORMAT, MEMORY)
_STEPS = 4  # after so many, each step is like the one before


@dataclass(frozen=True)
class Step:
    """The work of a step.

    load_ms:   how long the host waits for a batch
    kernels:   (kind, milliseconds on the GPU), in the order of their launches
    launch_ms: the host's time for each launch
    reads:     after how many kernels the host reads a value
    read_ms:   what a read costs on top of waiting for the GPU
    """

    load_ms: float
    kernels: tuple[tuple[str, float], ...]
    launch_ms: float
    reads: frozenset[int]
    read_ms: float = 0.02


@dataclass(frozen=True)
class Trace:
    """Where the time of one step went, in milliseconds; `_ROWS` says what each attribute is.

    The host's load_ms, launch_ms and read_ms add up to step_ms. The GPU's fp32_ms, low_ms, cast_ms
    and other_ms (norms, activations, the optimizer, …) add up to busy_ms; it is idle for the rest
    of the step. kernels, fp32_kernels and reads are numbers of them; `largest` is the kind and the
    milliseconds of the longest kernel.
    """

    step_ms: float
    load_ms: float
    launch_ms: float
    read_ms: float
    busy_ms: float
    fp32_ms: float
    low_ms: float
    cast_ms: float
    other_ms: float
    kernels: int
    fp32_kernels: int
    reads: int
    largest: tuple[str, float]


_ROWS = {
    "step_ms": "the whole step",
    "load_ms": "host waits for a batch",
    "launch_ms": "host launches kernels",
    "read_ms": "host waits in reads",
    "busy_ms": "GPU is busy",
    "fp32_ms": "- matmuls in fp32",
    "low_ms": "- matmuls in 16 bits",
    "cast_ms": "- casts",
    "other_ms": "- other kernels",
    "kernels": "kernels",
    "fp32_kernels": "- matmuls in fp32",
    "reads": "reads of values",
    "largest": "longest kernel, ms",
}


def trace_rows(traces: Mapping[str, Trace]) -> list[list[str]]:
    """Return traces as rows for `kit.table`, one column for each, in milliseconds."""
    rows = [["attribute", "what it is", *traces]]
    for name, words in _ROWS.items():
        values = [getattr(trace, name) for trace in traces.values()]
        rows.append([name, words, *map(_cell, values)])
    return rows


def _cell(value: float | tuple[str, float]) -> str:
    if isinstance(value, tuple):
        return f"{value[0]}, {value[1]:.1f}"
    return str(value) if isinstance(value, int) else f"{value:.1f}"


def run(step: Step) -> Trace:
    """Simulate a few equal steps in a row, and return the trace of the last."""
    host = gpu = 0.0
    for _ in range(_STEPS):
        began, waited = host, 0.0
        host += step.load_ms
        for number, (_, milliseconds) in enumerate(step.kernels, 1):
            host += step.launch_ms
            gpu = max(gpu, host) + milliseconds
            if number in step.reads:
                wait = max(0.0, gpu - host) + step.read_ms
                host, waited = host + wait, waited + wait
    total = {kind: sum(ms for name, ms in step.kernels if name == kind) for kind in _KINDS}
    return Trace(
        step_ms=host - began,
        load_ms=step.load_ms,
        launch_ms=step.launch_ms * len(step.kernels),
        read_ms=waited,
        busy_ms=sum(total.values()),
        fp32_ms=total[FP32],
        low_ms=total[LOW],
        cast_ms=total[CAST],
        other_ms=total[OTHER],
        kernels=len(step.kernels),
        fp32_kernels=sum(kind == FP32 for kind, _ in step.kernels),
        reads=len(step.reads),
        largest=max(step.kernels, key=lambda kernel: kernel[1]),
    )


FIXES: dict[str, Callable[[Step], Step]] = {  # cause → the step without it
    DATA: lambda step: dataclasses.replace(step, load_ms=0.0),
    LAUNCH: lambda step: dataclasses.replace(step, launch_ms=0.0),
    SYNC: lambda step: dataclasses.replace(step, reads=frozenset([min(step.reads)])),
    SLOW_FORMAT: lambda step: _faster(step, FP32, by=8.0),  # in 16 bits
    MEMORY: lambda step: _faster(step, CAST, OTHER, by=4.0),  # fused: they move fewer bytes
}


def scaled(step: Step, factor: float) -> Step:
    """Return the step of a GPU and a host that take `factor` times as long for everything."""
    return Step(
        factor * step.load_ms,
        tuple((kind, factor * ms) for kind, ms in step.kernels),
        factor * step.launch_ms,
        step.reads,
        factor * step.read_ms,
    )


def _faster(step: Step, *kinds: str, by: float) -> Step:
    kernels = tuple((kind, ms / by if kind in kinds else ms) for kind, ms in step.kernels)
    return dataclasses.replace(step, kernels=kernels)


def draw_step(bottleneck: str, draw: random.Random, *, misleading: bool = True) -> Step:
    """Draw a step with this bottleneck, whose fix shortens the step by far the most.

    misleading: on a busy GPU, the longest kernel is not of the kind that takes the most time in
                all, and bytes are moved by many kernels, not by a few casts
    """
    few, size = draw.randint(2, 3), draw.uniform(0.9, 1.1)

    def drawn(*counts: tuple[int, float]) -> tuple[tuple[str, float], ...]:
        """Draw kernels in mixed order; counts: for each kind the number and the mean in ms."""
        kernels = [
            (kind, mean * draw.uniform(0.8, 1.2))
            for kind, (count, mean) in zip(_KINDS, counts, strict=True)
            for _ in range(count)
        ]
        draw.shuffle(kernels)
        return tuple(kernels)

    if bottleneck == DATA:
        low = 0.008 if misleading else 0.06
        kernels = drawn((few, 0.4), (60, low), (40, 0.003), (150, 0.003))
        return Step(20.0 * size, kernels, 0.011, frozenset([80]))
    if bottleneck == LAUNCH:
        kernels = drawn((few, 0.2), (90, 0.007), (70, 0.003), (250, 0.004))
        return Step(0.4, kernels, 0.018 * size, frozenset([60, 150, 300]))
    if bottleneck == SYNC:
        kernels = drawn((few, 0.3), (60, 0.012), (40, 0.004), (120, 0.006))
        return Step(0.5, kernels, 0.008, frozenset(range(2, len(kernels), 2)), 0.05 * size)
    if bottleneck == SLOW_FORMAT:
        kernels = drawn((9 + few, 1.6 * size), (80, 0.06), (30, 0.02), (110, 0.02))
        return Step(6.0, (*kernels, *[(OTHER, 2.4 * size)] * misleading), 0.007, frozenset([70]))
    if misleading:
        kernels = drawn((few, 1.4), (40, 0.05), (80, 0.03), (300, 0.06 * size))
    else:  # fewer and longer kernels, most of it casts
        kernels = drawn((few, 0.13), (40, 0.05), (100, 0.18 * size), (60, 0.003))
    return Step(2.0, kernels, 0.014, frozenset([140]))


@functools.cache
def example_traces() -> dict[str, Trace]:
    """Return five traces, "A" to "E", each with another bottleneck."""
    kinds = {"A": SLOW_FORMAT, "B": LAUNCH, "C": MEMORY, "D": DATA, "E": SYNC}
    return {name: run(draw_step(kind, random.Random(9))) for name, kind in kinds.items()}
