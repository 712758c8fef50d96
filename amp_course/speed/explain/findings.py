"""All that is known of a step, and what one piece of advice is."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from amp_course.kit.measure import seconds_text
from amp_course.speed.explain import kinds
from amp_course.speed.explain.evidence import Evidence
from amp_course.speed.explain.sampling import Line, LineTimes
from amp_course.speed.explain.trials import MatmulTrial


@dataclass(frozen=True)
class Advice:
    """One thing to change.

    cause:    its name, such as "waiting-for-data"
    seconds:  the most that it would save in a step
    measured: True if the fix was tried; else `seconds` is the time that the cause takes now
    """

    cause: str
    seconds: float
    evidence: str
    fix: str
    chapter: str = "09"
    measured: bool = False


@dataclass
class Findings:
    """All that is known of a step, which the rules read.

    fused:         of each optimizer the name, and its fused version's time over the current one's
    threads:       of torch now, and the cores that there are
    other_threads: seconds of the step as it is, and with a thread for each core, if tried
    faults:        new pages in a step, which take fault_seconds
    fetch_busy:    CPU time over wall-clock time of the fetches; None if the step fetches its data
    crowded:       True if other programs may have had the CPU, on a system that does not say
    workers:       of a DataLoader; None if there is none
    cast_seconds:  what autocast's casts would take
    """

    seconds: float
    times: dict[str, float]
    evidence: Evidence
    lines: LineTimes
    trials: tuple[MatmulTrial, ...]
    low: torch.dtype
    device: str
    fused: list[tuple[str, float]] = field(default_factory=list)
    threads: tuple[int, int] = (0, 0)
    other_threads: tuple[float, float] | None = None
    faults: float = 0.0
    fault_seconds: float = 0.0
    fetch_busy: float | None = None
    crowded: bool = False
    workers: int | None = None
    cast_seconds: float = 0.0

    @property
    def scale(self) -> float:
        """The matmuls' time in the step over their time in the trials."""
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

    def takes(self, seconds: float) -> str:
        """Return "takes 1.20 ms, 10 %"."""
        return f"takes {seconds_text(seconds)}, {self.percent(seconds)}"
