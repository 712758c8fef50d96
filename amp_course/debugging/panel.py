"""`HeadroomMap`: go through the steps of a recorded run that dies, and see where it gets hot."""

from __future__ import annotations

import math
from collections.abc import Callable
from html import escape
from typing import Any

from amp_course.debugging.headroom import DivergingRun, level_of
from amp_course.debugging.panel_html import headroom_view
from amp_course.kit.panel import Button, Control, Menu, Panel, Slider
from amp_course.watching.readings import KINDS, Ranges, Reading


class HeadroomMap(Panel):
    """Choose a step and a kind of tensor; buttons jump to the first heat and the first inf or NaN.

    run: what is shown, from the step in which it died; None records one, in a few seconds
    """

    title = "HeadroomMap: where does the heat start?"

    def __init__(self, run: DivergingRun | None = None) -> None:
        self.run = run or _record()
        steps = len(self.run.losses)
        self.step = Slider(
            self.run.death or steps,
            range(1, steps + 1),
            "step",
            "the step of the training that is shown; the first step is 1",
            width="56em",
        )
        self.kind = Menu(
            "activation",
            KINDS,
            "kind",
            "which tensors are shown: what modules return, the gradients of it, weights, or their "
            "gradients",
            width="27em",
        )
        self.first_heat = Button(
            "first heat", "jump to the first step with at most 2 doublings left"
        )
        self.first_nonfinite = Button(
            "first inf or NaN", "jump to the first step with an inf or a NaN"
        )
        super().__init__((self.step, self.kind, self.first_heat, self.first_nonfinite))

    @staticmethod
    def record() -> Any:
        """Record a run that dies, as data for a page, without what the view does not show."""
        run = _record()
        return {
            "losses": run.losses,
            "skipped": run.skipped,
            "readings": {
                kind: {
                    module: [
                        [one.number, *map(_brief, (one.largest, one.lost, one.headroom))]
                        for one in readings
                    ]
                    for module, readings in run.ranges.of(kind).items()
                }
                for kind in KINDS
            },
        }

    @classmethod
    def of(cls, data: Any) -> HeadroomMap:
        """Make the panel from what `record` returned."""
        readings = [
            Reading(number, module, kind, "", largest, math.nan, 0.0, lost, headroom)
            for kind, modules in data["readings"].items()
            for module, rows in modules.items()
            for number, largest, lost, headroom in rows
        ]
        readings.sort(key=lambda reading: reading.number)
        ranges = Ranges("fp16", 1, readings)
        return cls(DivergingRun(ranges, tuple(data["losses"]), tuple(data["skipped"])))

    def update(self, control: Control | None) -> None:
        """Jump if a button was pressed, and show the step."""
        self.message = ""
        if control is self.first_heat:
            self._jump(
                lambda reading: level_of(reading) >= 4,
                "comes within 2 doublings of the end of the format",
            )
        elif control is self.first_nonfinite:
            self._jump(lambda reading: not reading.finite, "holds an inf or a NaN")
        self.html = headroom_view(self.run, self.kind.value, self.step.value)

    def _jump(self, wanted: Callable[[Reading], bool], does: str) -> None:
        kind = self.kind.value
        self.message = f"No {kind} of this run {does}."
        for one in self.run.ranges.readings:
            if one.kind == kind and wanted(one):
                self.step.value = one.number
                self.message = (
                    f"Step {one.number}: {escape(one.module or 'the model')} is the first whose "
                    f"{kind} {does}."
                )
                return


def _brief(value: float) -> float:
    return float(f"{value:.9g}")


def _record() -> DivergingRun:
    from amp_course.debugging.dying import record_dying_run  # needs torch, which a page lacks

    return record_dying_run()
