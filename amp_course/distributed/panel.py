"""`RankExplorer`: choose how ranks agree on skipped steps, and where an activation overflows; see
which ranks skip and which drift.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import product
from typing import Any

from amp_course.distributed.panel_html import run_view
from amp_course.distributed.simulation import AGREEMENTS, Agreement, RankRun, simulate
from amp_course.kit.panel import Control, Menu, Panel, Slider

PATTERNS = {  # period, steps in a row
    "never": (0, 0),
    "once": (0, 1),
    "every 5th step": (5, 1),
    "bursts of 3": (10, 3),
}
ALL, IN_TURN = "all ranks", "the ranks in turn"
_RANKS, _STEPS, _FIRST = (2, 4, 8), 30, 13
_GROWTH = 8
_RECORDED = (
    "These runs were recorded, in PyTorch. In JupyterLab, where they are simulated as you choose, "
    "the sliders and the growth interval move, too."
)
_menu, _slider = partial(Menu, width="27em"), partial(Slider, width="27em", late=True)

# The arguments of `simulate`, with the schedule as its items.
Settings = tuple[int, Agreement, tuple[tuple[int, tuple[int, ...]], ...], int, int | None]


def plan_outliers(
    pattern: str, where: int | str, first: int, ranks: int, steps: int
) -> dict[int, tuple[int, ...]]:
    """Return a schedule for `simulate`: step → ranks with an outlier.

    pattern: one of PATTERNS
    where:   a rank, or ALL, or IN_TURN: the first outlier (or burst) on rank 0, the next one on
             rank 1, and so on
    first:   the step of the first outlier, from 0 as in `simulate`

    Example: plan_outliers("once", 1, first=12, ranks=4, steps=30) → {12: (1,)}
    """
    period, length = PATTERNS[pattern]
    plan: dict[int, tuple[int, ...]] = {}
    for number, start in enumerate(range(first, steps, period or steps)):
        rank = number % ranks if where == IN_TURN else where
        on = tuple(range(ranks)) if where == ALL else (int(rank),)
        plan |= {step: on for step in range(start, min(start + length, steps))}
    return plan


class RankExplorer(Panel):
    """Choose ranks, agreement and outliers by menu and slider; every rank trains with its own
    GradScaler.

    recorded: runs to choose from; None simulates each run when it is first chosen

    `panel.ranks.value = 8` drives it in a test; `panel.run` is the `RankRun` that it shows.
    """

    title = "RankExplorer: which ranks skip, and do they stay equal?"

    def __init__(self, recorded: Mapping[Settings, RankRun] | None = None) -> None:
        self._runs, self._recorded = dict(recorded or {}), recorded is not None
        self.agreement = _menu(
            "nothing",
            [
                ("nothing (each has a shard)", "nothing"),
                ("gradients (all-reduced, as in DDP)", "gradients all-reduced"),
                ("found_inf (each has a shard)", "found_inf agreed"),
            ],
            "ranks agree on",
            "what keeps the ranks together: nothing, the all-reduce of all gradients, or an "
            "all-reduce of found_inf",
        )
        self.ranks = _menu(4, _RANKS, "ranks", "how many ranks train together")
        self.pattern = _menu(
            "once", PATTERNS, "outliers", "when an activation of 100,000 overflows fp16"
        )
        self.where = _menu(1, [1], "on", "the rank or ranks on which it overflows")
        self.growth = _menu(
            _GROWTH,
            [4, 8, ("never", None)],
            "growth interval",
            "after how many steps without an inf a scaler doubles its scale",
        )
        self.steps = _slider(_STEPS, range(10, 41), "steps", "how many steps the ranks train")
        self.first = _slider(
            _FIRST,
            range(1, _STEPS + 1),
            "first outlier at",
            "the step of the first outlier; the first step is 1",
        )
        self.steps.disabled = self.growth.disabled = self._recorded
        outliers = (self.pattern, self.where, self.first)
        super().__init__((self.agreement, self.ranks, *outliers, self.steps, self.growth))
        self.message = _RECORDED if self._recorded else ""

    @staticmethod
    def record() -> Any:
        """Record runs as data for a page; ranks with equal histories share one."""
        places: dict[Any, int] = {}
        runs = []
        for settings in _recorded_settings():
            run = _simulated(settings)
            histories = zip(run.scales, run.overflowed, run.skipped, run.distances, strict=True)
            runs.append([places.setdefault(history, len(places)) for history in histories])
        brief = [
            [scales, [*map(int, over)], [*map(int, skips)], [float(f"{x:.9g}") for x in distances]]
            for scales, over, skips, distances in places
        ]
        return {"histories": brief, "runs": runs}

    @classmethod
    def of(cls, data: Any) -> RankExplorer:
        """Return a panel of what `record` returned."""
        histories = [
            (tuple(scales), tuple(map(bool, over)), tuple(map(bool, skips)), tuple(distances))
            for scales, over, skips, distances in data["histories"]
        ]
        recorded = {}
        for settings, places in zip(_recorded_settings(), data["runs"], strict=True):
            fields = zip(*(histories[place] for place in places), strict=True)
            scales, over, skips, distances = fields
            recorded[settings] = RankRun(settings[1], scales, over, skips, distances, norms=())
        return cls(recorded)

    def update(self, control: Control | None) -> None:
        ranks, steps = self.ranks.value, self.steps.value
        if self.where.value in range(ranks, max(_RANKS)):
            self.where.value = 1
        among = [1] if self._recorded else range(ranks)
        self.where.options = [*((f"rank {rank}", rank) for rank in among), IN_TURN, ALL]
        self.first.value = min(self.first.value, steps)
        self.first.options = range(1, steps + 1)
        self.where.disabled = self.pattern.value == "never"
        self.first.disabled = self.where.disabled or self._recorded
        outliers = self.pattern.value, self.where.value, self.first.value
        settings = _settings(ranks, self.agreement.value, *outliers, steps, self.growth.value)
        if settings not in self._runs:
            self._runs[settings] = _simulated(settings)
        self.run = self._runs[settings]
        self.html = run_view(self.run)


def _settings(
    ranks: int,
    agreement: Agreement,
    pattern: str,
    where: int | str,
    first: int = _FIRST,
    steps: int = _STEPS,
    growth: int | None = _GROWTH,
) -> Settings:
    plan = plan_outliers(pattern, where, first - 1, ranks, steps)
    return ranks, agreement, tuple(plan.items()), steps, growth


def _simulated(settings: Settings) -> RankRun:
    ranks, agreement, plan, steps, growth = settings
    return simulate(ranks, agreement, dict(plan), steps, growth)


def _recorded_settings() -> list[Settings]:
    """Return the settings that can be chosen on a page, each once."""
    places: tuple[int | str, ...] = (1, IN_TURN, ALL)
    choices = product(_RANKS, AGREEMENTS, PATTERNS, places)
    return [*dict.fromkeys(_settings(*choice) for choice in choices)]
