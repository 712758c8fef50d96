"""Several trainings as a table: one row for each variant and rate,
with the spread over its seeds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from amp_course.frontiers.experiments.training import Run
from amp_course.kit.errors import CourseError
from amp_course.kit.paths import course_root
from amp_course.kit.report import Block, Page, Table

SCORES = {"gpt": "held-out loss", "resnet": "right digits"}


@dataclass(frozen=True, repr=False)
class TrainingTable(Page):
    """Trainings of one workload. Each number is a mean over seeds,
    with the least and the largest where there are several.
    """

    runs: tuple[Run, ...]

    def __post_init__(self) -> None:
        if not self.runs:
            raise ValueError("a table needs at least one training")
        if len({run.workload for run in self.runs}) != 1:
            raise ValueError("a table holds trainings of one workload: make one for each")

    def groups(self) -> dict[tuple[str, float], list[Run]]:
        """Return the runs of each variant and rate, in the order of the first."""
        groups: dict[tuple[str, float], list[Run]] = {}
        for run in self.runs:
            groups.setdefault((run.variant, run.rate), []).append(run)
        return groups

    def score(self, variant: str, rate: float | None = None) -> float:
        """Return the mean score of a variant; KeyError if it did not train."""
        found = [
            run.score for run in self.runs if run.variant == variant and rate in (None, run.rate)
        ]
        if not found:
            raise KeyError(
                f"{variant!r} was not trained: choose one of "
                f"{sorted({run.variant for run in self.runs})}"
            )
        return sum(found) / len(found)

    def differences(self, variant: str, other: str) -> list[float]:
        """Return how much a variant's score is above another's, seed by seed;
        KeyError for one that did not train.
        """
        self.score(variant)
        self.score(other)
        scores = {(run.variant, run.rate, run.seed): run.score for run in self.runs}
        pairs = [
            (score, (other, rate, seed))
            for (name, rate, seed), score in scores.items()
            if name == variant
        ]
        return [score - scores[pair] for score, pair in pairs if pair in scores]

    def only(self, *variants: str, rate: float | None = None) -> TrainingTable:
        """Return the part of some variants, in their order here;
        KeyError for one that did not train.
        """
        for variant in variants:
            self.score(variant, rate)
        kept = [
            run
            for run in self.runs
            if (not variants or run.variant in variants) and rate in (None, run.rate)
        ]
        return TrainingTable(tuple(kept))

    def rows(self) -> list[list[str]]:
        """Return the table as text, its head first."""
        workload = self.runs[0].workload
        several_rates = len({run.rate for run in self.runs}) > 1
        compressed = any(run.kept for run in self.runs)
        head = [
            "variant",
            *(["rate"] if several_rates else []),
            "bits",
            "last loss",
            SCORES.get(workload, workload),
            "seeds",
        ]
        rows = [head + (["fp32 bytes"] if compressed else [])]
        for (variant, rate), runs in self.groups().items():
            row = [variant, *([f"{rate:g}"] if several_rates else []), f"{runs[0].bits:.3g}"]
            row += [_spread([run.last_loss for run in runs], 3)]
            row += [
                _spread([run.score for run in runs], 3)
                if workload == "gpt"
                else _percent([run.score for run in runs])
            ]
            row.append(str(len(runs)))
            if compressed:
                row.append(f"÷ {runs[0].whole / runs[0].kept:.1f}" if runs[0].kept else "")
            rows.append(row)
        return rows

    def blocks(self) -> Iterator[Block]:
        yield Table(self.rows())


def _spread(values: Iterable[float], digits: int) -> str:
    values = list(values)
    if not all(map(math.isfinite, values)):
        return "not finite"
    mean = f"{sum(values) / len(values):.{digits}f}"
    return (
        mean
        if len(values) == 1
        else f"{mean} ({min(values):.{digits}f} to {max(values):.{digits}f})"
    )


def _percent(values: Iterable[float]) -> str:
    values = [100 * value for value in values]
    mean = f"{sum(values) / len(values):.1f} %"
    return mean if len(values) == 1 else f"{mean} ({min(values):.1f} to {max(values):.1f})"


def load_trainings(path: Path | None = None) -> dict[str, TrainingTable]:
    """Read recorded trainings: the newest in benchmarks/results, or the file named. Returns a table
    for each workload.

    Raises CourseError if there is none, with the command that makes one.
    """
    if path is None:
        found = sorted(
            (course_root() / "benchmarks" / "results").glob("low_bits-*.json"),
            key=lambda file: file.name[-15:],
        )
        if not found:
            raise CourseError(
                "no trainings are recorded: make a record with `python -m benchmarks.low_bits` "
                "(some minutes)."
            )
        path = found[-1]
    rows = json.loads(path.read_text("utf-8"))["runs"]
    runs = [
        Run(**row | {"losses": tuple(math.nan if n is None else n for n in row["losses"])})
        for row in rows
    ]
    return {
        name: TrainingTable(tuple(r for r in runs if r.workload == name))
        for name in dict.fromkeys(r.workload for r in runs)
    }


def as_json(run: Run) -> dict[str, Any]:
    """Return a run for a file, its losses with four digits;
    None for one that is not finite, as JSON has no NaN.
    """
    return {
        **asdict(run),
        "losses": [float(f"{loss:.4g}") if math.isfinite(loss) else None for loss in run.losses],
    }
