"""`HeadroomMap`: go through the steps of a recorded run that dies,
and see where the heat starts.
"""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import Any

import ipywidgets as widgets
from matplotlib.figure import Figure

from amp_course.debugging.dying import DivergingRun, record_dying_run
from amp_course.debugging.figures import headroom_figure, no_headroom_figure
from amp_course.debugging.headroom import level_of
from amp_course.debugging.panel_html import headroom_view
from amp_course.debugging.ranges import Reading
from amp_course.kit.panel import WIDE, Panel
from amp_course.watching.readings import KINDS, Kind

_NARROW = widgets.Layout(width="27em", max_width="100%")
_LONG = widgets.Layout(width="56em", max_width="100%")  # a slider of some fifty steps


def first_reading(
    run: DivergingRun, kind: Kind, wanted: Callable[[Reading], bool]
) -> Reading | None:
    """Return the first reading of a kind that is wanted, in the order of the measurements;
    None if there is none.
    """
    return next((one for one in run.ranges.readings if one.kind == kind and wanted(one)), None)


class HeadroomMap(Panel):
    """Choose a step and a kind of tensor; two buttons jump to the first heat and to the first inf
    or NaN.

    It opens at the step in which the run died, or at its last one.

    run: what is shown; None records a run that dies, which takes a few seconds

    `panel.step.value = 40` drives it in a test. Nothing is trained once it is open.
    """

    def __init__(self, run: DivergingRun | None = None) -> None:
        self.run, trouble = (run, "") if run is not None else _record()
        steps = len(self.run.losses) if self.run else 0
        # all that led to it is on the map then
        first = (self.run.death if self.run else None) or max(1, steps)
        self.step = widgets.IntSlider(
            first,
            1,
            max(1, steps),
            self.run.ranges.every if self.run else 1,
            description="step",
            style=WIDE,
            tooltip="the step of the training that is shown; the first step is 1",
            layout=_LONG,
        )
        self.step.add_class("amp-long")
        self.kind = widgets.Dropdown(
            options=[*KINDS],
            value="activation",
            description="kind",
            style=WIDE,
            layout=_NARROW,
            tooltip="which tensors are shown: what modules return, the gradients of it, weights, "
            "or their gradients",
        )
        self.first_heat = widgets.Button(
            description="first heat", tooltip="jump to the first step with at most 2 doublings left"
        )
        self.first_nonfinite = widgets.Button(
            description="first inf or NaN", tooltip="jump to the first step with an inf or a NaN"
        )
        controls = [self.step, self.kind, self.first_heat, self.first_nonfinite]
        for control in controls:
            control.disabled = not steps
        box = widgets.HBox(controls, layout=widgets.Layout(flex_flow="row wrap"))
        super().__init__("HeadroomMap: where does the heat start?", [box], widgets.HTML())
        self.step.observe(self._redraw, names="value")
        self.kind.observe(self._redraw, names="value")
        self.first_heat.on_click(self._jump_to_heat)
        self.first_nonfinite.on_click(self._jump_to_nonfinite)
        self._redraw()
        self.tell(trouble or ("" if steps else "This run has no steps."))

    def _redraw(self, change: Any = None) -> None:
        self.tell()
        if self.run and self.run.losses:
            self.view.value = headroom_view(self.run, self.kind.value, self.step.value)

    def _jump_to_heat(self, button: Any) -> None:
        self._jump(
            lambda reading: level_of(reading) >= 4,
            "comes within 2 doublings of the end of the format",
        )

    def _jump_to_nonfinite(self, button: Any) -> None:
        self._jump(lambda reading: not reading.finite, "holds an inf or a NaN")

    def _jump(self, wanted: Callable[[Reading], bool], does: str) -> None:
        if not self.run:
            return
        kind = self.kind.value
        first = first_reading(self.run, kind, wanted)
        if first is None:
            self.tell(f"No {kind} of this run {does}.")
            return
        self.step.value = first.number
        self.tell(
            f"Step {first.number}: {escape(first.module or 'the model')} is the first whose {kind} "
            f"{does}."
        )

    def still(self) -> Figure:
        """Return the map of the chosen kind, with the chosen step marked."""
        kind = self.kind.value
        if self.run and self.run.ranges.of(kind):
            return headroom_figure(self.run.ranges, kind, marked=self.step.value)
        return no_headroom_figure(f"No {kind} was measured in this run.")


def _record() -> tuple[DivergingRun | None, str]:
    """Return a recorded run, or None and why there is none."""
    try:
        return record_dying_run(), ""
    except Exception as error:  # whatever goes wrong in a training, the notebook is told in a line
        return None, f"The run was not recorded: {escape(str(error))}"
