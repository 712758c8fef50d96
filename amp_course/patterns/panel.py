"""`LoopWorkbench`: assemble a training loop from switches,
and read what an audit finds in it as it runs.
"""

from __future__ import annotations

from dataclasses import replace
from html import escape
from typing import Any

import ipywidgets as widgets
import torch
from matplotlib.figure import Figure

from amp_course.audit import audit
from amp_course.diagnosis.report import Report
from amp_course.kit.panel import WIDE, Panel
from amp_course.kit.threads import one_thread
from amp_course.patterns.figures import workbench_figure
from amp_course.patterns.workbench import (
    Switches,
    build_loop,
    judgements,
    marked_lines,
    source_of,
    workbench_view,
)

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
_NARROW = widgets.Layout(width="24em", max_width="100%")
_WORDS = {True: "yes", False: "no"}


class LoopWorkbench(Panel):
    """Start from a loop and change it by its switches; the loop shown is run and audited at once.

    panel.start.value = "never cleared" or panel.switches["clip"].value = "before unscale" drives it
    in a test; `panel.source` and `panel.audit` are what it shows. Every setting is audited once, by
    a live run of some ten updates of a tiny model.
    """

    def __init__(self) -> None:
        self._audits: dict[Switches, Report] = {}
        self._setting = False
        self.start = widgets.Dropdown(
            options=[*PRESETS, OWN],
            description="start from",
            style=WIDE,
            layout=_NARROW,
            tooltip="a loop that people write; change it with the menus below",
        )
        self.switches = {name: _menu(name) for name in _SWITCHES}
        rows = widgets.HBox([*self.switches.values()], layout=widgets.Layout(flex_flow="row wrap"))
        super().__init__("LoopWorkbench: which line is wrong?", [self.start, rows], widgets.HTML())
        self.start.observe(self._change_start, names="value")
        for menu in self.switches.values():
            menu.observe(self._change_switch, names="value")
        self._redraw()

    @property
    def chosen(self) -> Switches:
        """The switches as they stand."""
        return replace(RIGHT, **{name: menu.value for name, menu in self.switches.items()})

    def _change_start(self, change: Any) -> None:
        if self._setting or self.start.value == OWN:
            return
        self._setting = True  # the menus' own changes are no choice of the reader's
        for name, menu in self.switches.items():
            menu.value = getattr(PRESETS[self.start.value], name)
        self._setting = False
        self._redraw()

    def _change_switch(self, change: Any) -> None:
        if self._setting:
            return
        self._setting = True
        self.start.value = next(
            (name for name, preset in PRESETS.items() if preset == self.chosen), OWN
        )
        self._setting = False
        self._redraw()

    def _redraw(self) -> None:
        switches = self.chosen
        once = switches.update == "once"
        self.switches["wait"].disabled = not once
        try:
            source, found = self._audited(switches)
        except Exception as error:  # whatever a loop does, the notebook goes on
            self.tell(
                f"<b>Nothing changed.</b> The loop could not be audited: {escape(str(error))}. "
                f"Choose another."
            )
            return
        self.source, self.audit = source, found
        self.tell(
            ""
            if once
            else "The scheduler can only wait where the scale is updated once: its menu has no "
            "effect."
        )
        self._lines, self._judged = marked_lines(source, source_of(RIGHT)), judgements(found)
        self.view.value = workbench_view(self._lines, self._judged, found)

    def _audited(self, switches: Switches) -> tuple[str, Report]:
        if switches not in self._audits:
            with torch.random.fork_rng(), one_thread():
                _, step, objects = build_loop(switches)
                self._audits[switches] = audit(step, **objects)
        return source_of(switches), self._audits[switches]

    def still(self) -> Figure:
        """Return the loop and its behaviours as they stand."""
        return workbench_figure(self._lines, self._judged)


def _menu(name: str) -> widgets.Dropdown:
    description, tooltip = _SWITCHES[name]
    options = [(_WORDS.get(value, value), value) for value in Switches.CHOICES[name]]
    value = getattr(RIGHT, name)
    return widgets.Dropdown(
        options=options,
        value=value,
        description=description,
        tooltip=tooltip,
        style=WIDE,
        layout=_NARROW,
    )
