"""How hot or cold a reading is: six levels, each with a colour and a second cue; and a run with its
readings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from amp_course.watching.readings import Ranges, Reading

# From cold to hot: what to call it, its colour, and the mark that is the second cue.
LEVELS = (
    ("more than half lost", "#0072B2", "o"),
    ("more than a tenth lost", "#9ecae1", "_"),
    ("fine", "#f0f0f0", ""),
    ("4 doublings left", "#FBE3A0", "|"),
    ("2 doublings left", "#E69F00", ""),
    ("overflows, inf or NaN", "#B30000", "x"),
)


@dataclass(frozen=True)
class DivergingRun:
    """A recorded training.

    ranges:  what the values of its tensors did; its forward passes are the steps
    losses:  one for each step
    skipped: the steps that the scaler skipped, counted from 1
    """

    ranges: Ranges
    losses: tuple[float, ...]
    skipped: tuple[int, ...]

    @property
    def death(self) -> int | None:
        """The first step whose loss is not finite, counted from 1; None if the run lives."""
        return next(
            (number for number, loss in enumerate(self.losses, 1) if not math.isfinite(loss)), None
        )


def level_of(reading: Reading) -> int:
    """Return the place in LEVELS of a reading: heat comes before cold.

    Example: 5 for a largest value beyond the format, 0 if more than half of the values are lost
    """
    if not reading.headroom >= 0:
        return 5
    if reading.headroom <= 2:
        return 4
    if reading.headroom <= 4:
        return 3
    return 0 if reading.lost > 0.5 else 1 if reading.lost > 0.1 else 2


def describe_levels(found: Mapping[str, Sequence[Reading]], unit: str = "pass") -> str:
    """Say in a phrase when heat, overflow and loss came up first, and where.

    found: readings by module, as `RangeWatch.of` returns them
    unit:  what a reading's number counts: "pass" or "step"
    """
    parts = []
    for level in (5, 4, 0):
        alike = [one for readings in found.values() for one in readings if level_of(one) == level]
        if alike:
            first = min(alike, key=lambda reading: reading.number)
            parts.append(
                f"{LEVELS[level][0]} first in {unit} {first.number:,}, "
                f"{first.module or 'the model'}"
            )
    return ", ".join(parts) or "nothing lost or near overflow"
