"""Small runs made by hand, for the panel's tests: nothing is trained."""

from __future__ import annotations

import math

from amp_course.debugging.headroom import DivergingRun
from amp_course.watching.readings import Kind, Ranges, Reading


def reading(
    number: int, module: str, largest: float, kind: Kind = "activation", lost: float = 0.0
) -> Reading:
    """A reading for fp16, whose headroom is worked out here on its own."""
    if math.isnan(largest):
        headroom = math.nan
    elif largest == 0 or math.isinf(largest):
        headroom = math.inf if largest == 0 else -math.inf
    else:
        headroom = math.log2(65504 / largest)
    return Reading(number, module, kind, "fp16", largest, 1.0, 0.0, lost, headroom)


def made_run(
    readings: list[Reading], losses: list[float], skipped: tuple[int, ...] = ()
) -> DivergingRun:
    return DivergingRun(Ranges("fp16", 1, readings), tuple(losses), skipped)


def dying() -> DivergingRun:
    """Six steps: block 2 gets hot in step 3, block 1 in step 4; step 5 is the last that steps;
    a gradient is inf in step 5.
    """
    largest = {
        "block1": [1.0, 2.0, 8.0, 20_000.0, 50_000.0, 60_000.0],
        "block2": [64.0, 4_096.0, 32_768.0, 40_000.0, 65_504.0, math.inf],
        "head": [0.0, 1.0, 2.0, 3.0, 70_000.0, math.nan],
    }
    readings = []
    for step in range(1, 7):
        readings += [reading(step, module, values[step - 1]) for module, values in largest.items()]
        last = math.inf if step >= 5 else 2.0**-step
        readings.append(
            reading(step, "head.weight", last, "weight gradient", lost=0.25 if step == 2 else 0.0)
        )
    return made_run(readings, [2.0, 1.5, 1.25, 1.0, 1234.5, math.nan], skipped=(5, 6))


def living() -> DivergingRun:
    readings = [reading(step, module, 2.0) for step in range(1, 5) for module in ("a", "b")]
    return made_run(readings, [1.0, 0.9, 0.8, 0.7])
