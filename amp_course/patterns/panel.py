"""`LoopWorkbench`: assemble a training loop from switches, and read what an audit finds in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from itertools import product
from typing import Any

import torch

from amp_course.diagnosis.findings import finding_of
from amp_course.diagnosis.report import Report
from amp_course.kit.panel import Control, Menu, Panel
from amp_course.kit.threads import one_thread
from amp_course.patterns.workbench.loop import Switches, build_loop, source_of
from amp_course.patterns.workbench.page import judgements, marked_lines, workbench_view

OWN = "your own"
RIGHT = Switches()
PRESETS: dict[str, Switches] = {  # the loops that people write
    "the right loop": RIGHT,
    "clipped while scaled": Switches(clip="before unscale"),
    "clipped in every micro-batch": Switches(clip="every micro-batch"),
    "not clipped": Switches(clip="not at all"),
    "sum instead of mean": Switches(divide=False),
    "cleared in every micro-batch": Switches(clear="every micro-batch"),
    "never cleared": Switches(clear="never"),
    "update() in every micro-batch": Switches(update="every micro-batch"),
    "update() forgotten": Switches(update="never"),
    "scheduler runs on": Switches(wait=False),
    "three faults at once": Switches(clip="before unscale", divide=False, wait=False),
}
_SWITCHES = {  # label and tooltip of each
    "clip": (
        "clip",
        "where clip_grad_norm_ stands: before or after unscale_, in every micro-batch, or nowhere",
    ),
    "divide": ("divide loss", "divide each loss by the number of micro-batches, before backward"),
    "clear": ("zero_grad", "when the gradients are cleared"),
    "update": ("scaler.update", "how often the scaler updates its scale"),
    "wait": ("scheduler waits", "let the scheduler wait in an update that was skipped"),
}
_WORDS = {True: "yes", False: "no"}


class LoopWorkbench(Panel):
    """Start from a loop and change it by its switches; the loop shown is run and audited at once.

    recorded: source → the report to show; any other loop is audited when it is first chosen, in
        about ten updates of a tiny model
    """

    title = "LoopWorkbench: which line is wrong?"

    def __init__(self, recorded: Mapping[str, Report] | None = None) -> None:
        self._audits = dict(recorded or {})
        tip = "a loop that people write; change it with the menus below"
        self.start = Menu(next(iter(PRESETS)), [*PRESETS, OWN], "start from", tip)
        self.switches = {name: _menu(name) for name in _SWITCHES}
        super().__init__(self.start, tuple(self.switches.values()))

    @staticmethod
    def record() -> dict[str, Any]:
        """Audit every loop, as data for a page: source → [findings, checked, not checked]."""
        loops = {source_of(switches): switches for switches in _all_switches()}
        reports = {source: run_audit(switches) for source, switches in loops.items()}
        return {
            source: [[*map(asdict, report.findings)], report.checked, report.not_checked]
            for source, report in reports.items()
        }

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> LoopWorkbench:
        """Return the panel that shows what `record` returned."""
        reports = {}
        for source, (found, checked, others) in data.items():
            findings = tuple(map(finding_of, found))
            reports[source] = Report(findings, tuple(checked), tuple(map(tuple, others)))
        return cls(reports)

    @property
    def chosen(self) -> Switches:
        """The chosen switches."""
        return replace(RIGHT, **{name: menu.value for name, menu in self.switches.items()})

    def update(self, control: Control | None) -> None:
        """Let the menus follow each other, and show the loop and its audit."""
        if control is not self.start:
            named = (name for name, preset in PRESETS.items() if preset == self.chosen)
            self.start.value = next(named, OWN)
        elif self.start.value != OWN:
            for name, menu in self.switches.items():
                menu.value = getattr(PRESETS[self.start.value], name)
        once = self.chosen.update == "once"
        self.switches["wait"].disabled = not once
        source = source_of(self.chosen)
        try:
            if source not in self._audits:
                self._audits[source] = run_audit(self.chosen)
        except Exception as error:  # whatever a loop does, the notebook goes on
            self.refuse(f"The loop could not be audited: {error}. Choose another")
            return
        self.source, self.audit = source, self._audits[source]
        self.message = ""
        if not once:
            self.message = (
                "The scheduler can only wait where the scale is updated once: its menu has no "
                "effect."
            )
        lines = marked_lines(source, source_of(RIGHT))
        self.html = workbench_view(lines, judgements(self.audit), self.audit)


def run_audit(switches: Switches) -> Report:
    """Audit a loop by running it; the random stream and the thread count are restored."""
    from amp_course.audit import audit  # it trains; the book shows what it found

    with torch.random.fork_rng(), one_thread():
        _, step, objects = build_loop(switches)
        return audit(step, **objects)


def _all_switches() -> list[Switches]:
    names, choices = zip(*Switches.CHOICES.items(), strict=True)
    return [Switches(**dict(zip(names, values, strict=True))) for values in product(*choices)]


def _menu(name: str) -> Menu:
    options = [(_WORDS.get(value, value), value) for value in Switches.CHOICES[name]]
    return Menu(getattr(RIGHT, name), options, *_SWITCHES[name])
