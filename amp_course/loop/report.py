"""The report card: what each recipe costs and gives on this machine, as data and as a table."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import pairwise
from typing import Any

import torch

from amp_course.kit.hardware import MachineReport, machine_report
from amp_course.kit.measure import Timing, busy_text, seconds_text
from amp_course.kit.memory import StepMemory, bytes_text
from amp_course.kit.report import Block, Page, Table
from amp_course.loop.recipe import AnyRecipe, recipes_for
from amp_course.loop.report_words import paragraph
from amp_course.loop.train import RunRecord, join
from amp_course.loop.workloads import Workload, char_gpt, digits_resnet, simple_net

_FIRST_TURN = 3  # steps: enough to see which recipe is too slow to finish
_SLOW = 2  # times the baseline's fastest step: a slower recipe is not slow by chance
_TURNS = 4  # after the first, so that a machine that slows down affects all recipes


@dataclass(frozen=True)
class Row:
    """One workload under one recipe; accuracy is None if it was stopped, or has no classes."""

    workload: str
    title: str
    recipe: AnyRecipe
    record: RunRecord
    planned_steps: int
    accuracy: float | None
    parameters: int

    @property
    def timing(self) -> Timing:
        """The time per step after the warm-up."""
        return self.record.timing

    @property
    def memory(self) -> StepMemory:
        """The bytes of one step."""
        assert self.record.memory is not None
        return self.record.memory

    @property
    def peak_bytes(self) -> int:
        """The most bytes in use at once during one step."""
        return self.memory.peak

    @property
    def bytes_per_parameter(self) -> float:
        """Bytes of weights, masters, gradients and optimizer state, over the parameters."""
        return self.memory.kept / self.parameters

    @property
    def activation_bytes(self) -> int:
        """Bytes that autograd saved for the backward pass."""
        return self.memory.activations

    @property
    def stopped(self) -> bool:
        """True if the time limit ended it early: loss and accuracy then cannot be compared."""
        return len(self.record.losses) < self.planned_steps

    @property
    def diverged(self) -> bool:
        """True if the last loss is inf or NaN."""
        return not math.isfinite(self.record.losses[-1])

    @property
    def final_loss(self) -> float:
        """The mean loss of the last tenth of the steps, at least one."""
        last = self.record.losses[-max(1, len(self.record.losses) // 10) :]
        return sum(last) / len(last)

    def to_dict(self) -> dict[str, Any]:
        """Return the row as plain numbers and strings."""
        return {
            "workload": self.workload,
            "title": self.title,
            "recipe": self.recipe.name,
            "steps": len(self.record.losses),
            "planned_steps": self.planned_steps,
            "seconds_per_step": self.timing.median,
            "seconds_quartiles": [self.timing.q1, self.timing.q3],
            "waited": self.timing.waited,
            "peak_bytes": self.peak_bytes,
            "bytes_per_parameter": self.bytes_per_parameter,
            "activation_bytes": self.activation_bytes,
            "memory": self.memory.to_dict(),
            "final_loss": self.final_loss,
            "accuracy": self.accuracy,
            "skipped_steps": len(self.record.skipped),
        }


@dataclass(frozen=True, repr=False)
class ReportCard(Page):
    """All rows of one run on one machine."""

    machine: MachineReport
    rows: tuple[Row, ...]
    day: str

    def workloads(self) -> tuple[str, ...]:
        """Return the names of the workloads, in the order in which they ran."""
        return tuple(dict.fromkeys(row.workload for row in self.rows))

    def of(self, workload: str) -> tuple[Row, ...]:
        """Return the rows of one workload; the first is the fp32 baseline."""
        return tuple(row for row in self.rows if row.workload == workload)

    def speedup(self, row: Row) -> float:
        """Return fp32's time per step over this row's: 2.0 is twice as fast."""
        return self.of(row.workload)[0].timing.median / row.timing.median

    def busy(self, workload: str) -> str:
        """Say why the times of a workload mean nothing; "" if they do."""
        return busy_text(*(row.timing.waited for row in self.of(workload)))

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers and strings, ready for JSON."""
        return {
            "day": self.day,
            "machine": self.machine.to_dict(),
            "rows": [{**row.to_dict(), "speedup": self.speedup(row)} for row in self.rows],
        }

    def cells(self) -> list[list[str]]:
        """Return the table as text, its head first."""
        head = (
            "workload|recipe|time per step|speed-up|peak memory|bytes per parameter|activations|"
            "final loss|accuracy|steps"
        )
        return [head.split("|"), *map(self._cells_of, self.rows)]

    def _cells_of(self, row: Row) -> list[str]:
        done = f"{len(row.record.losses)} of " if row.stopped else ""
        return [
            row.title,
            row.recipe.label,
            seconds_text(row.timing.median),
            "–" if self.busy(row.workload) else f"{self.speedup(row):.2f} ×",
            bytes_text(row.peak_bytes),
            f"{row.bytes_per_parameter:.1f}",
            bytes_text(row.activation_bytes),
            "–" if row.stopped else f"{row.final_loss:.4f}",
            "–" if row.accuracy is None else f"{row.accuracy:.1%}",
            f"{done}{row.planned_steps}",
        ]

    def blocks(self) -> Iterator[Block]:
        yield Table(self.cells())
        if busy := max(map(self.busy, self.workloads()), default=""):
            yield busy

    def paragraph(self) -> str:
        """Say in words (Markdown) what the numbers show: what helped, what did not, and why."""
        return paragraph(self)


def make_report_card(
    device: torch.device,
    *,
    workloads: Sequence[Workload] | None = None,
    recipes: Sequence[AnyRecipe] | None = None,
    max_seconds: float = 8.0,
) -> ReportCard:
    """Train every workload under every recipe, interleaved, and collect the rows.

    max_seconds: a limit for one workload under one recipe. A recipe that is slower than the first
        and cannot finish in time, even at the pace of its fastest step so far, is stopped at once.
        Two steps always run, as memory is counted in the second. The card says what was stopped.
    """
    workloads = workloads or (simple_net(device), digits_resnet(device), char_gpt(device))
    recipes = recipes or recipes_for(device)
    rows = [row for workload in workloads for row in _run(workload, recipes, max_seconds)]
    return ReportCard(machine_report(device), tuple(rows), date.today().isoformat())


def _run(workload: Workload, recipes: Sequence[AnyRecipe], max_seconds: float) -> list[Row]:
    trainings = [_Training(workload, recipe, max_seconds) for recipe in recipes]
    for steps in _turns(workload.steps):
        for training in trainings:
            training.train(steps, trainings[0])
    return [training.row() for training in trainings]


def _turns(steps: int) -> list[int]:
    """Cut steps into a short first turn and some equal ones. Example: 32 → [3, 7, 7, 7, 8]"""
    first = min(_FIRST_TURN, steps)
    ends = [first + (steps - first) * turn // _TURNS for turn in range(_TURNS + 1)]
    return [first, *(end - start for start, end in pairwise(ends) if end > start)]


class _Training:
    """A workload under one recipe, trained in turns until it is done or cannot finish in time."""

    def __init__(self, workload: Workload, recipe: AnyRecipe, max_seconds: float) -> None:
        self.workload, self.recipe = workload, recipe
        self.session = workload.start(recipe)
        self.records: list[RunRecord] = []
        self.steps_left, self.seconds_left = workload.steps, max_seconds
        self.stopped = False

    def train(self, steps: int, baseline: _Training) -> None:
        """Take some more steps; stop if time is up, or if a slow recipe cannot finish in time."""
        if self.stopped:
            return
        began = time.monotonic()
        record = self.session.run(steps, self.seconds_left)
        self.seconds_left -= time.monotonic() - began
        self.records.append(record)
        self.steps_left -= len(record.losses)
        # Only a recipe slower than the baseline is stopped before its time is up: on a busy
        # machine all are slow, and the baseline is needed for every comparison.
        needed = self.fastest * (self.steps_left if self.fastest > _SLOW * baseline.fastest else 1)
        self.stopped = self.steps_left > 0 and (not record.complete or needed > self.seconds_left)

    @property
    def fastest(self) -> float:
        """The seconds of the fastest step so far."""
        return min(seconds for record in self.records for seconds in record.step_seconds)

    def row(self) -> Row:
        """Return what was measured, with the accuracy of a training that was not stopped."""
        work = self.workload
        accuracy = work.accuracy(self.session) if work.accuracy and not self.stopped else None
        count = sum(parameter.numel() for parameter in self.session.stepper.model.parameters())
        record = join(self.records)
        return Row(work.name, work.title, self.recipe, record, work.steps, accuracy, count)
