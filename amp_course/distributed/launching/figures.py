"""The figure of the launchers. It takes times that were measured, and measures nothing."""

from __future__ import annotations

from matplotlib.figure import Figure

from amp_course.distributed.launching.start_up import StartUpTimes
from amp_course.kit.colours import INK
from amp_course.kit.measure import seconds_text
from amp_course.kit.style import new_figure, title

_BAR = "#56B4E9"


def start_up_figure(times: StartUpTimes) -> Figure:
    """Draw the median start-up time of each launcher as a bar, with its quartiles,
    in the order in which they were timed.
    """
    names = list(times.seconds)
    timings = [times.timing(name) for name in names]
    rounds = len(next(iter(times.seconds.values())))
    told = "; ".join(
        f"{name} {seconds_text(one.median)}"
        + (f" ({seconds_text(one.q1)} to {seconds_text(one.q3)})" if rounds > 1 else "")
        for name, one in zip(names, timings, strict=True)
    )
    what = "median start-up time" if rounds > 1 else "start-up time"
    alt = (
        f"Bars of the {what} of two ranks by launcher, "
        f"{'with quartiles' if rounds > 1 else 'one start of each'}: {told}."
    )
    figure, axis = new_figure(7.2, 0.9 + 0.38 * len(names), alt=alt)
    medians = [one.median for one in timings]
    spread = [[one.median - one.q1 for one in timings], [one.q3 - one.median for one in timings]]
    axis.barh(names, medians, height=0.6, color=_BAR, edgecolor=INK, linewidth=0.6)
    if rounds > 1:
        axis.errorbar(
            medians, names, xerr=spread, fmt="none", ecolor=INK, elinewidth=1.2, capsize=3
        )
    for name, one in zip(names, timings, strict=True):
        axis.annotate(
            seconds_text(one.median),
            (one.q3, name),
            (6, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            color=INK,
        )
    axis.invert_yaxis()
    axis.set_xlim(0, 1.12 * max(one.q3 for one in timings))
    axis.tick_params(axis="y", length=0, labelsize=9)
    axis.set_xlabel("seconds", fontsize=8, color=INK)
    many = f"median and quartiles of {rounds} rounds, taken in turn" if rounds > 1 else "one round"
    title(axis, "From the command to the first all-reduce", f"two ranks, gloo; {many}")
    return figure
