"""Several trainings as a table: a row for each variant and rate, with the spread over its seeds."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from amp_course.frontiers.experiments.training import Run
from amp_course.kit.paths import newest_record
from amp_course.kit.report import Block, Page, Table

SCORES = {"gpt": "held-out loss", "resnet": "right digits"}


@dataclass(frozen=True, repr=False)
class TrainingTable(Page):
    """Trainings of one workload. Each number is a mean over seeds, with its range if there are
    several.
    """

    runs: tuple[Run, ...]

    def groups(self) -> dict[tuple[str, float], list[Run]]:
        """Return the runs of each variant and rate, in the order of the first."""
        groups: dict[tuple[str, float], list[Run]] = {}
        for run in self.runs:
            groups.setdefault((run.variant, run.rate), []).append(run)
        return groups

    def differences(self, variant: str, other: str) -> list[float]:
        """Return how much a variant's score is above another's, by seed;
        KeyError for one that was not trained.
        """
        self._require(variant, other)
        scores = {(run.variant, run.rate, run.seed): run.score for run in self.runs}
        pairs = [
            (score, (other, rate, seed))
            for (name, rate, seed), score in scores.items()
            if name == variant
        ]
        return [score - scores[pair] for score, pair in pairs if pair in scores]

    def only(self, *variants: str, rate: float | None = None) -> TrainingTable:
        """Return the runs of some variants, or of all, in their order here; KeyError for a variant
        that was not trained.
        """
        part = TrainingTable(tuple(run for run in self.runs if rate in (None, run.rate)))
        part._require(*variants)
        chosen = variants or {run.variant for run in part.runs}
        return TrainingTable(tuple(run for run in part.runs if run.variant in chosen))

    def _require(self, *variants: str) -> None:
        known = {run.variant for run in self.runs}
        for variant in variants:
            if variant not in known:
                raise KeyError(f"{variant!r} was not trained: choose one of {sorted(known)}")

    def rows(self) -> list[list[str]]:
        """Return the table as text, its head first."""
        workload = self.runs[0].workload
        several_rates = len({run.rate for run in self.runs}) > 1
        compressed = any(run.kept for run in self.runs)
        head = ["variant", "bits", "last loss", SCORES.get(workload, workload), "seeds"]
        rows = [head + (["fp32 bytes"] if compressed else [])]
        for (variant, _), runs in self.groups().items():
            scores, losses = [run.score for run in runs], [run.last_loss for run in runs]
            score = _spread(scores, 3)
            if workload == "resnet":
                score = _spread([100 * score for score in scores], 1, " %")
            row = [variant, f"{runs[0].bits:.3g}", _spread(losses, 3), score, str(len(runs))]
            if compressed:
                row.append(f"÷ {runs[0].whole / runs[0].kept:.1f}" if runs[0].kept else "")
            rows.append(row)
        if several_rates:
            rates = ["rate", *(f"{rate:g}" for _, rate in self.groups())]
            rows = [[row[0], rate, *row[1:]] for row, rate in zip(rows, rates, strict=True)]
        return rows

    def blocks(self) -> Iterator[Block]:
        yield Table(self.rows())


def _spread(values: Sequence[float], digits: int, unit: str = "") -> str:
    if not all(map(math.isfinite, values)):
        return "not finite"
    mean = f"{sum(values) / len(values):.{digits}f}{unit}"
    if len(values) == 1:
        return mean
    return f"{mean} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def load_trainings(path: Path | None = None) -> dict[str, TrainingTable]:
    """Read recorded trainings, by default the newest in benchmarks/results; return a table for each
    workload.

    Raises CourseError if there is none, with the command that makes one.
    """
    path = path or newest_record("low_bits")
    tables: dict[str, list[Run]] = {}
    for row in json.loads(path.read_text("utf-8"))["runs"]:
        losses = tuple(math.nan if loss is None else loss for loss in row["losses"])
        tables.setdefault(row["workload"], []).append(Run(**row | {"losses": losses}))
    return {workload: TrainingTable(tuple(runs)) for workload, runs in tables.items()}


def as_json(run: Run) -> dict[str, Any]:
    """Return a run for a JSON file, its losses with four digits; None for NaN and inf."""
    return {
        **asdict(run),
        "losses": [float(f"{loss:.4g}") if math.isfinite(loss) else None for loss in run.losses],
    }
