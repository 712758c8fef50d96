"""`RankExplorer`: choose how ranks agree on skipped steps, and where an activation overflows;
see who skips and who drifts.
"""

from __future__ import annotations

from typing import Any

import ipywidgets as widgets
from matplotlib.figure import Figure

from amp_course.distributed.figures import rank_figure
from amp_course.distributed.panel_html import run_view
from amp_course.distributed.simulation import RankRun, simulate
from amp_course.kit.panel import WIDE, Panel

_NARROW = widgets.Layout(width="27em", max_width="100%")
PATTERNS = {
    "never": (0, 0),
    "once": (0, 1),
    "every 5th step": (5, 1),
    "bursts of 3": (10, 3),
}  # period, steps in a row
ALL, IN_TURN = "all ranks", "the ranks in turn"


def plan_outliers(
    pattern: str, where: int | str, first: int, ranks: int, steps: int
) -> dict[int, tuple[int, ...]]:
    """Return a schedule for `simulate`: step → ranks with an outlier.

    pattern: one of PATTERNS
    where:   a rank, or ALL, or IN_TURN: the first outlier (or burst) on rank 0, the next one on
             rank 1, and so on
    first:   the step of the first outlier, from 0 as in `simulate`

    Raises KeyError for an unknown pattern. Example: plan_outliers("once", 1, first=12, ranks=4,
    steps=30) → {12: (1,)}
    """
    period, length = PATTERNS[pattern]
    plan: dict[int, tuple[int, ...]] = {}
    for turn, start in enumerate(range(first, steps, period or steps)):
        on = (
            tuple(range(ranks))
            if where == ALL
            else (turn % ranks if where == IN_TURN else int(where),)
        )
        plan |= {step: on for step in range(start, min(start + length, steps))}
    return plan


class RankExplorer(Panel):
    """Choose ranks, agreement and outliers by menu and slider; every rank trains with a GradScaler
    of its own.

    `panel.ranks.value = 8` drives it in a test; `panel.run` is what it shows, a `RankRun`. Settings
    that were shown before are kept, and shown again at once.
    """

    def __init__(self) -> None:
        self._runs: dict[tuple[Any, ...], RankRun] = {}
        self._setting = False
        self.agreement = _menu(
            [
                ("nothing (each has a shard)", "nothing"),
                ("gradients (all-reduced, as in DDP)", "gradients all-reduced"),
                ("found_inf (each has a shard)", "found_inf agreed"),
            ],
            "nothing",
            "ranks agree on",
            "what keeps the ranks together: nothing, the all-reduce of all gradients, or an "
            "all-reduce of found_inf",
        )
        self.ranks = _menu([2, 4, 8], 4, "ranks", "how many ranks train together")
        self.pattern = _menu(
            [*PATTERNS], "once", "outliers", "when an activation of 100,000 overflows fp16"
        )
        self.where = _menu(self._places(), 1, "on", "the rank or ranks on which it overflows")
        self.growth = _menu(
            [("4", 4), ("8", 8), ("never", None)],
            8,
            "growth interval",
            "after how many steps without an inf a scaler doubles its scale",
        )
        self.steps = _slider(30, 10, 40, "steps", "how many steps the ranks train")
        self.first = _slider(
            13, 1, 30, "first outlier at", "the step of the first outlier; the first step is 1"
        )
        controls = [
            self.agreement,
            self.ranks,
            self.pattern,
            self.where,
            self.first,
            self.steps,
            self.growth,
        ]
        box = widgets.HBox(controls, layout=widgets.Layout(flex_flow="row wrap"))
        super().__init__(
            "RankExplorer: which ranks skip, and do they stay equal?", [box], widgets.HTML()
        )
        self.ranks.observe(self._change_ranks, names="value")
        self.steps.observe(self._change_steps, names="value")
        for control in (self.agreement, self.pattern, self.where, self.first, self.growth):
            control.observe(self._redraw, names="value")
        self._redraw()

    def _places(self) -> list[tuple[str, int | str]]:
        ranks: list[tuple[str, int | str]] = [
            (f"rank {rank}", rank) for rank in range(self.ranks.value)
        ]
        return [*ranks, (IN_TURN, IN_TURN), (ALL, ALL)]

    def _change_ranks(self, change: Any) -> None:
        self._setting = True  # the menu's own changes are no choice of the reader's
        where = self.where.value
        self.where.options = self._places()
        self.where.value = where if where in [value for _, value in self.where.options] else 1
        self._setting = False
        self._redraw()

    def _change_steps(self, change: Any) -> None:
        self._setting = True
        self.first.max = self.steps.value
        self._setting = False
        self._redraw()

    def _redraw(self, change: Any = None) -> None:
        if self._setting:
            return
        self.where.disabled = self.first.disabled = self.pattern.value == "never"
        ranks, steps = self.ranks.value, self.steps.value
        plan = plan_outliers(
            self.pattern.value, self.where.value, self.first.value - 1, ranks, steps
        )
        settings = (ranks, self.agreement.value, tuple(plan.items()), steps, self.growth.value)
        if settings not in self._runs:
            self._runs[settings] = simulate(
                ranks, self.agreement.value, plan, steps, self.growth.value
            )
        self.run = self._runs[settings]
        self.view.value = run_view(self.run)

    def still(self) -> Figure:
        """Return the ranks' scales, skips and weights as they stand."""
        return rank_figure(self.run)


def _menu(options: list[Any], value: Any, description: str, tooltip: str) -> widgets.Dropdown:
    return widgets.Dropdown(
        options=options,
        value=value,
        description=description,
        tooltip=tooltip,
        style=WIDE,
        layout=_NARROW,
    )


def _slider(value: int, low: int, high: int, description: str, tooltip: str) -> widgets.IntSlider:
    return widgets.IntSlider(
        value,
        low,
        high,
        description=description,
        tooltip=tooltip,
        style=WIDE,
        layout=_NARROW,
        continuous_update=False,
    )
