"""The report card: what each recipe costs and gives on this machine, as data, table, JSON, PNG and a paragraph."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

import torch

from amp_course.bits.formats import find_format
from amp_course.kit.dtypes import FASTER, DtypeSupport
from amp_course.kit.hardware import MachineReport, machine_report
from amp_course.kit.measure import Timing, seconds_text
from amp_course.kit.memory import bytes_text
from amp_course.kit.table import html_table, text_table
from amp_course.loop.recipe import AnyRecipe, recipes_for
from amp_course.loop.train import RunRecord, join
from amp_course.loop.workloads import Workload, char_gpt, digits_resnet, simple_net

_ROUNDS = 4  # the recipes take turns this often, so that a machine that slows down slows them all


@dataclass(frozen=True)
class Row:
    """One workload under one recipe. accuracy is None where there is none to have."""

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
    def peak_bytes(self) -> int:
        """The most bytes that were live at once in one step."""
        assert self.record.memory is not None
        return self.record.memory.peak

    @property
    def bytes_per_parameter(self) -> float:
        """Bytes of weights, masters, gradients and optimizer state over the number of parameters."""
        assert self.record.memory is not None
        return self.record.memory.kept / self.parameters

    @property
    def activation_bytes(self) -> int:
        """Bytes that autograd saved for the backward pass."""
        assert self.record.memory is not None
        return self.record.memory.activations

    @property
    def died(self) -> bool:
        """Whether the last loss is inf or NaN."""
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
            "peak_bytes": self.peak_bytes,
            "bytes_per_parameter": self.bytes_per_parameter,
            "activation_bytes": self.activation_bytes,
            "memory": self.record.memory.to_dict() if self.record.memory else None,
            "final_loss": self.final_loss,
            "accuracy": self.accuracy,
            "skipped_steps": len(self.record.skipped),
        }


@dataclass(frozen=True)
class ReportCard:
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

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers and strings, ready for JSON."""
        return {
            "day": self.day,
            "machine": self.machine.to_dict(),
            "rows": [{**row.to_dict(), "speedup": self.speedup(row)} for row in self.rows],
        }

    def cells(self) -> list[list[str]]:
        """Return the table as text, its head first."""
        head = ["workload", "recipe", "time per step", "speed-up", "peak memory", "bytes per parameter", "activations"]
        return [[*head, "final loss", "accuracy", "steps"], *(self._cells_of(row) for row in self.rows)]

    def _cells_of(self, row: Row) -> list[str]:
        steps = f"{len(row.record.losses)} of {row.planned_steps}" if _short(row) else str(row.planned_steps)
        return [
            row.title,
            row.recipe.label,
            seconds_text(row.timing.median),
            f"{self.speedup(row):.2f} ×",
            bytes_text(row.peak_bytes),
            f"{row.bytes_per_parameter:.1f}",
            bytes_text(row.activation_bytes),
            "–" if _short(row) else f"{row.final_loss:.4f}",
            "–" if row.accuracy is None else f"{row.accuracy:.1%}",
            steps,
        ]

    def __repr__(self) -> str:
        return text_table(self.cells())

    def _repr_html_(self) -> str:
        return html_table(self.cells())

    def paragraph(self) -> str:
        """Say in words (Markdown) what the numbers show: what helped, what did not, and why."""
        said = [self._about(workload) for workload in self.workloads()]
        return "\n\n".join([*said, *self._about_deaths(), *self._about_short_runs()])

    def _about(self, workload: str) -> str:
        base, *others = self.of(workload)
        finished = [row for row in others if not _short(row) and not row.died]
        if not finished:
            return f"**{base.title}.** Only {base.recipe.label} finished here."
        best = max(finished, key=self.speedup)
        gain = self.speedup(best)
        share = best.peak_bytes / base.peak_bytes
        names = base.recipe.label, best.recipe.label
        times = (
            f"{seconds_text(base.timing.median)} a step in {names[0]}, {seconds_text(best.timing.median)} in {names[1]}"
        )
        if gain >= 1.1:
            verdict = f"{best.recipe.label} helped: {gain:.2f} times as fast ({times})."
        elif gain >= 0.95:
            verdict = f"{best.recipe.label} changed little: {gain:.2f} times as fast ({times})."
        else:
            verdict = (
                f"No recipe beat {names[0]}: the fastest, {names[1]}, took {1 / gain:.2f} times as long ({times})."
            )
        if gain < 1.1:
            verdict += f" {self._reason(best.recipe)}"
        memory, best_memory = base.record.memory, best.record.memory
        assert memory is not None and best_memory is not None
        kept = memory.kept / base.peak_bytes
        became = (
            f"which {names[1]} leaves in fp32"
            if best_memory.kept == memory.kept
            else f"which {names[1]} brought from {base.bytes_per_parameter:.1f} to {best.bytes_per_parameter:.1f} bytes per "
            "parameter"
        )
        peak = (
            f"Peak memory went to {share:.0%} of {names[0]}'s; {kept:.0%} of that peak are weights, gradients and optimizer "
            f"state, {became}."
        )
        if best.accuracy is not None and base.accuracy is not None:
            quality = f"Accuracy: {base.accuracy:.1%} in {names[0]}, {best.accuracy:.1%} in {names[1]}."
        else:
            quality = f"Final loss: {base.final_loss:.4f} in {names[0]}, {best.final_loss:.4f} in {names[1]}."
        return f"**{base.title}.** {verdict} {peak} {quality}"

    def _reason(self, recipe: AnyRecipe) -> str:
        """Say why a recipe gained nothing, as far as the machine's measured matmuls tell."""
        support = self._support(recipe)
        if support is None or support.times_fp32 is None:
            return ""
        if support.times_fp32 >= FASTER:
            return (
                f"There is nothing to win here: {_a(support.name).lower()} matmul takes "
                f"{support.times_fp32:.2f} times fp32's time on this machine."
            )
        return (
            f"{_a(support.name)} matmul takes {support.times_fp32:.2f} times fp32's time on this machine, so what this step "
            "spends its time on must be something else: small ops, casts, batch norm, the optimizer. Chapter 09 finds out which."
        )

    def _support(self, recipe: AnyRecipe) -> DtypeSupport | None:
        name = find_format(recipe.low_dtype or torch.float32).name
        return next((support for support in self.machine.dtypes if support.name == name), None)

    def _about_deaths(self) -> list[str]:
        dead = [f"{row.recipe.label} ({row.title})" for row in self.rows if row.died]
        return [f"The loss became inf or NaN under {', '.join(dead)}: chapter 08 says why."] if dead else []

    def _about_short_runs(self) -> list[str]:
        short = [row for row in self.rows if _short(row)]
        if not short:
            return []
        slowest = min(short, key=self.speedup)
        support = self._support(slowest.recipe)
        emulated = support is not None and support.state == "emulated"
        why = (
            f" {_a(support.name)} matmul takes {support.times_fp32:.0f} times fp32's time on this machine, so it is emulated; a "
            "GPU with tensor cores shows what fp16 is for."
            if support is not None and emulated
            else ""
        )
        return [
            f"{slowest.recipe.label} was stopped early, by the time limit, at up to {1 / self.speedup(slowest):.0f} times fp32's "
            f"time a step ({slowest.title}).{why} Its loss and accuracy after so few steps compare nothing and are left out."
        ]


def _a(name: str) -> str:
    return f"An {name}" if name.startswith("f") else f"A {name}"


def _short(row: Row) -> bool:
    return len(row.record.losses) < row.planned_steps


def make_report_card(
    device: torch.device,
    *,
    workloads: Sequence[Workload] | None = None,
    recipes: Sequence[AnyRecipe] | None = None,
    max_seconds: float = 8.0,
) -> ReportCard:
    """Train every workload under every recipe, in turn, and collect the rows.

    max_seconds: for one workload under one recipe but the first, which is the baseline (or three times the baseline's
        own time, if that is more); a recipe that is emulated stops there, and the card says so
    """
    workloads = workloads or (simple_net(device), digits_resnet(device), char_gpt(device))
    recipes = recipes or recipes_for(device)
    rows = [row for workload in workloads for row in _run(workload, recipes, max_seconds)]
    return ReportCard(machine_report(device), tuple(rows), date.today().isoformat())


def _run(workload: Workload, recipes: Sequence[AnyRecipe], max_seconds: float) -> list[Row]:
    sessions = {recipe.name: workload.start(recipe) for recipe in recipes}
    records: dict[str, list[RunRecord]] = {recipe.name: [] for recipe in recipes}
    for _ in range(_ROUNDS):
        for recipe in recipes:
            done = records[recipe.name]
            if all(record.complete for record in done):
                # The baseline always finishes: every other recipe is told by it. On a machine that is slow today the
                # others may take as long as it did, and some.
                base = records[recipes[0].name]
                limit = max(max_seconds / _ROUNDS, 3 * sum(base[-1].step_seconds)) if base else None
                done.append(sessions[recipe.name].run(workload.steps // _ROUNDS, None if done is base else limit))
    rows = []
    for recipe in recipes:
        record = join(records[recipe.name])
        finished = record.complete
        right = workload.accuracy(sessions[recipe.name]) if workload.accuracy and finished else None
        parameters = sum(parameter.numel() for parameter in sessions[recipe.name].stepper.model.parameters())
        rows.append(Row(workload.name, workload.title, recipe, record, workload.steps, right, parameters))
    return rows
