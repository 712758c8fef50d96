"""How hot or cold a reading is, in six levels with colours and other cues; and a recorded run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from amp_course.watching.readings import Ranges, Reading


class Level(NamedTuple):
    """A level's name, its colour, and its other cue: a marker in figures, a hatch in panels."""

    name: str
    colour: str
    marker: str
    hatch: str


# From cold to hot
LEVELS = (
    Level("more than half lost", "#0072B2", "o", ".."),
    Level("more than a tenth lost", "#9ecae1", "_", "--"),
    Level("fine", "#f0f0f0", "", ""),
    Level("4 doublings left", "#FBE3A0", "|", "||"),
    Level("2 doublings left", "#E69F00", "", "//"),
    Level("overflows, inf or NaN", "#B30000", "x", "xx"),
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
        losses = enumerate(self.losses, 1)
        return next((number for number, loss in losses if not math.isfinite(loss)), None)


def level_of(reading: Reading) -> int:
    """Return the index in LEVELS of a reading's level: heat comes before cold.

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
    """Describe when and where overflow, heat and loss came first.

    found: readings by module, as `RangeWatch.of` returns them
    unit:  what a reading's number counts: "pass" or "step"
    """
    parts = []
    for level in (5, 4, 0):
        alike = [one for readings in found.values() for one in readings if level_of(one) == level]
        if alike:
            first = min(alike, key=lambda reading: reading.number)
            place = f"{unit} {first.number:,}, {first.module or 'the model'}"
            parts.append(f"{LEVELS[level].name} first in {place}")
    return ", ".join(parts) or "nothing lost or near overflow"
