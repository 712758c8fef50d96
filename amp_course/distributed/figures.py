"""The figure of `RankExplorer`. It takes what a simulation recorded, and simulates nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.transforms import ScaledTranslation

from amp_course.distributed.panel_html import (
    NEUTRAL,
    OVERFLOWED,
    RANKS,
    SKIPPED,
    describe,
    name_ranks,
    replicated,
    step_ticks,
)
from amp_course.distributed.simulation import RankRun
from amp_course.kit.colours import FAINT
from amp_course.kit.style import new_figure, title

_AGREE = {
    "nothing": "agree on nothing",
    "gradients all-reduced": "all-reduce their gradients",
    "found_inf agreed": "agree on found_inf",
}


def rank_figure(run: RankRun) -> Figure:
    """Draw the ranks' loss scales, who skipped when, and how far the replicated weights are from
    rank 0's.
    """
    figure, (scales, rows, distances) = new_figure(
        7.6,
        4.4 + 0.15 * run.ranks,
        rows=3,
        height_ratios=[1.4, 0.15 + 0.15 * run.ranks, 1],
        sharex=True,
        alt=f"{run.ranks} ranks {_AGREE[run.agreement]}: loss scale, skipped steps and distance "
        f"from rank 0's {replicated(run)} by step. {describe(run)}",
    )
    scales.set_yscale("log", base=2)
    scales.set_ylim(min(map(min, run.scales)) / 2, max(map(max, run.scales)) * 2)
    _lines(scales, run, run.scales, apart=1.8)
    scales.legend(
        fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1, 1), handlelength=3
    )
    _rows(rows, run)
    _lines(distances, run, run.distances)
    apart = [math.log10(one) for of_rank in run.distances for one in of_rank if one]
    low, high = math.floor(min(apart, default=-2)), math.ceil(max(apart, default=0))
    distances.set_yscale("symlog", linthresh=10.0**low, linscale=0.5)
    ticks = (
        [10.0**decade for decade in range(low, high + 1, max(1, math.ceil((high - low) / 3)))]
        if apart
        else []
    )
    distances.set_yticks([0, *ticks], ["equal", *(f"{tick:,.4g}" for tick in ticks)], minor=False)
    distances.set_yticks([], minor=True)
    distances.set_ylim(-0.3 * 10.0**low, 2 * 10.0 ** max(high, low + 1))
    distances.set_xlim(0, run.steps)
    distances.set_xticks(
        [step - 0.5 for step in step_ticks(run)], [str(step) for step in step_ticks(run)]
    )
    distances.set_xlabel("step", fontsize=8)
    title(scales, f"{run.ranks} ranks {_AGREE[run.agreement]}", "loss scale")
    title(rows, "Who skips?")
    title(distances, f"Are the {replicated(run)} still equal?", "largest difference from rank 0's")
    kinds = {
        "overflowed on this rank: skipped": OVERFLOWED,
        "overflowed on another rank only: skipped": SKIPPED,
    }
    handles = [
        Patch(fc=NEUTRAL, hatch=hatch * 2, ec="white", label=label)
        for label, hatch in kinds.items()
    ]
    figure.legend(handles=handles, fontsize=8, frameon=False, ncols=2, loc="outside lower center")
    return figure


def _lines(axis: Any, run: RankRun, values: Sequence[Sequence[float]], apart: float = 0) -> None:
    """Draw a line for each group of equal ranks; `apart` points keep equal values from hiding each
    other.
    """
    groups = run.groups()
    for n, ranks in enumerate(groups):
        colour, dash = RANKS[ranks[0]]
        points = [*values[ranks[0]], values[ranks[0]][-1]]
        below = (n - (len(groups) - 1) / 2) * apart
        axis.step(
            range(run.steps + 1),
            points,
            where="post",
            color=colour,
            lw=1.8,
            ls=(0, tuple(float(length) / 1.8 for length in dash.split())) if dash else "-",
            transform=axis.transData
            + ScaledTranslation(0, -below / 72, axis.figure.dpi_scale_trans),
            label=name_ranks(ranks) if len(groups) > 1 else "all ranks",
        )


def _rows(axis: Any, run: RankRun) -> None:
    for rank in range(run.ranks):
        axis.plot([0, run.steps], [rank, rank], color=FAINT, lw=0.5, zorder=0)
        for step in range(run.steps):
            if run.skipped[rank][step]:
                hatch = OVERFLOWED if run.overflowed[rank][step] else SKIPPED
                colour = RANKS[rank][0]
                axis.bar(
                    step + 0.5,
                    0.8,
                    0.9,
                    rank - 0.4,
                    color=colour,
                    hatch=hatch * 2,
                    edgecolor="white",
                    lw=0,
                )
    axis.set_yticks(range(run.ranks), [f"rank {rank}" for rank in range(run.ranks)], fontsize=7)
    axis.set_ylim(run.ranks - 0.5, -0.5)
