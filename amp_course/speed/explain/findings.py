"""All that is known of a step, and what one piece of advice is."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from amp_course.speed.explain import kinds
from amp_course.speed.explain.evidence import Evidence
from amp_course.speed.explain.sampling import Line, LineTimes
from amp_course.speed.explain.trials import MatmulTrial


@dataclass(frozen=True)
class Advice:
    """One thing to change.

    cause:    a word for it, such as "waiting-for-data"
    seconds:  what it would save in a step, at most
    measured: whether the fix itself was tried; else `seconds` is the time that the cause takes now
    """

    cause: str
    seconds: float
    evidence: str
    fix: str
    chapter: str = "09"
    measured: bool = False


@dataclass
class Findings:
    """All that is known of a step; the rules read it."""

    seconds: float
    times: dict[str, float]
    evidence: Evidence
    lines: LineTimes
    trials: tuple[MatmulTrial, ...]
    low: torch.dtype
    device: str
    # of the optimizers: name, fused time over current
    fused: list[tuple[str, float]] = field(default_factory=list)
    threads: tuple[int, int] = (0, 0)  # now, and the cores that there are
    # seconds of the step as it is, and with a thread for each core, if tried
    other_threads: tuple[float, float] | None = None
    faults: float = 0.0  # pages a step
    fault_seconds: float = 0.0
    # CPU time over wall-clock time of the fetches; None if the step fetches its own data
    fetch_busy: float | None = None
    # whether other programs may have had the CPU, on a system that does not say
    crowded: bool = False
    workers: int | None = None  # of a DataLoader; None if it is none
    cast_seconds: float = 0.0  # what autocast's casts would take, if it were on

    @property
    def scale(self) -> float:
        """What a second of the matmuls' trials is worth in the step, where they are slower."""
        tried = sum(one.count * one.seconds for one in self.trials)
        in_step = self.times[kinds.LOW_MATMUL] + self.times[kinds.FP32_MATMUL]
        return in_step / tried if tried else 0.0

    def saved(self, trials: list[MatmulTrial], dtype: torch.dtype) -> float:
        """Return the seconds that these matmuls would save in another dtype, in the step."""
        return self.scale * sum(one.gain(dtype) for one in trials)

    def at(self, line: Line | None) -> str:
        """Return " in line 3, `…`", or "" where no line is known."""
        return f" in {line}" if line else ""

    def percent(self, seconds: float) -> str:
        return f"{100 * seconds / self.seconds:.0f} %"
