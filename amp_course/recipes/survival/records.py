"""The survival map: every fate of one run of it, kept as a record, and the published runs that it
is compared with.

`python -m benchmarks.survival` makes a record, in some minutes; `runs` trains the cells.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from amp_course.kit.errors import CourseError
from amp_course.kit.paths import course_root
from amp_course.recipes.survival.runs import RunResult


@dataclass(frozen=True)
class SurvivalMap:
    """All outcomes of one run of the map, and where and when it was made."""

    outcomes: tuple[RunResult, ...]
    machine: str
    torch: str
    day: str

    def cell(self, setting: str, recipe: str, batch_size: int) -> tuple[RunResult, ...]:
        """Return one cell's outcomes, one for each seed."""
        wanted = (setting, recipe, batch_size)
        return tuple(
            each for each in self.outcomes if (each.setting, each.recipe, each.batch_size) == wanted
        )

    def recipes(self) -> tuple[str, ...]:
        """Return the recipes' names, in the order in which they ran."""
        return tuple(dict.fromkeys(each.recipe for each in self.outcomes))

    def sizes(self, setting: str) -> tuple[int, ...]:
        """Return the batch sizes of one setting, rising."""
        return tuple(sorted({each.batch_size for each in self.outcomes if each.setting == setting}))

    def deaths(self, setting: str, recipe: str) -> dict[int, int]:
        """Return how many seeds died at each batch size at which any did: {256: 3, 512: 5}."""
        counts = {
            size: sum(run.died_at is not None for run in self.cell(setting, recipe, size))
            for size in self.sizes(setting)
        }
        return {size: count for size, count in counts.items() if count}

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers and strings;
        an infinite first loss as text, for JSON has none.
        """
        rows = [asdict(each) | {"first_loss": str(each.first_loss)} for each in self.outcomes]
        return {"machine": self.machine, "torch": self.torch, "day": self.day, "outcomes": rows}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> SurvivalMap:
        """Make the map again from `to_dict`'s numbers."""
        rows = tuple(
            RunResult(**row | {"first_loss": float(row["first_loss"])}) for row in data["outcomes"]
        )
        return cls(rows, data["machine"], data["torch"], data["day"])


def load_survival(path: Path | None = None) -> SurvivalMap:
    """Read a recorded map: the newest in benchmarks/results, or the file named.

    Raises CourseError if there is none, with the command that makes one.
    """
    if path is None:
        found = sorted(
            (course_root() / "benchmarks" / "results").glob("survival-*.json"),
            key=lambda file: file.name[-15:],
        )
        if not found:
            raise CourseError(
                "there is no recorded survival map: make one with `python -m benchmarks.survival` "
                "(some minutes)."
            )
        path = found[-1]
    return SurvivalMap.from_dict(json.loads(path.read_text()))


@dataclass(frozen=True)
class PublishedRun:
    """One line of the ImageNet table. top1 in percent; None means that NaN was reported."""

    recipe: str
    batch_size: int
    top1: float | None


# ResNet-50 on ImageNet, 8 × V100, PyTorch 1.7, SGD, rate 0.1 × batch / 256: an experience report to
# FlyEgle/imageclassification. None of it measured here. Its torch AMP and Apex O1 runs are both O1.
IMAGENET = (
    PublishedRun("half_bn32", 256, 75.40),
    PublishedRun("half_bn32", 512, 75.70),
    PublishedRun("half_bn32", 1024, 75.57),
    PublishedRun("half_bn32", 2048, None),
    PublishedRun("half_bn32", 4096, None),
    PublishedRun("o1", 4096, 75.79),
    PublishedRun("torch_amp", 4096, 75.92),
    PublishedRun("o2", 4096, 75.59),
    PublishedRun("o3", 4096, None),
)
