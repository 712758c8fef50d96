"""The figure of ranks that drift apart, and of ranks that agree.
It takes trainings that were run, and runs nothing.
"""

from __future__ import annotations

import math
from typing import Any

from matplotlib.figure import Figure

from amp_course.distributed.agreement.drift import KINDS, Drift
from amp_course.kit.colours import INK
from amp_course.kit.style import FEWER_DOTS, new_figure, title

# Okabe and Ito's colours; line and marker are the second cue.
RANK_STYLES = (("#0072B2", "-", "v"), ("#D55E00", "--", "^"))


def drift_figure(*drifts: Drift) -> Figure:
    """Draw trainings side by side: the loss scale of each rank by step, with its skips, above the
    distance between the ranks' weights.
    """
    summaries = "; ".join(f"{KINDS[drift.kind]}: {_summary(drift)}" for drift in drifts)
    figure, axes = new_figure(
        3.7 * len(drifts),
        4.2,
        columns=len(drifts),
        rows=2,
        squeeze=False,
        sharex=True,
        sharey="row",
        height_ratios=[1.6, 1],
        alt=f"Loss scale by rank and step, and the distance of the weights. {summaries}.",
        dots=FEWER_DOTS,
    )
    for (above, below), drift in zip(axes.T, drifts, strict=True):
        _scales(above, drift)
        title(above, KINDS[drift.kind], "loss scale after each step; triangles: the rank skips")
        steps = range(1, len(drift.distance) + 1)
        below.plot(steps, drift.distance, color=INK, lw=1.4)
        below.set_ylim(-0.0005, max(0.01, *(1.05 * max(drift.distance) for drift in drifts)))
        below.set_xlabel("step", fontsize=8)
        title(below, "", "largest difference of the weights that both ranks have")
    axes[0][0].legend(fontsize=8, frameon=False, loc="upper left")
    return figure


def _scales(axis: Any, drift: Drift) -> None:
    ranks = zip(RANK_STYLES, drift.scales, drift.skipped, strict=True)
    for rank, ((colour, line, marker), scales, skipped) in enumerate(ranks):
        steps = range(1, len(scales) + 1)
        # shifted a little, so that equal scales show as two lines
        shifted = [scale * 2 ** (0.06 * (1 - 2 * rank)) for scale in scales]
        axis.step(
            steps, shifted, where="post", color=colour, linestyle=line, lw=1.4, label=f"rank {rank}"
        )
        skips = [scale if skip else math.nan for scale, skip in zip(shifted, skipped, strict=True)]
        axis.plot(steps, skips, marker, color=colour, markersize=6, linestyle="")
    axis.set_yscale("log", base=2)


def _summary(drift: Drift) -> str:
    counts = " and ".join(str(sum(skipped)) for skipped in drift.skipped)
    if drift.parted is None:
        return f"the scales stay equal, with {counts} skips on the ranks"
    return (
        f"the scales part at step {drift.parted}, and the weights differ by up to "
        f"{max(drift.distance):.2g}"
    )
