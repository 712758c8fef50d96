"""The figure of the launchers. It draws measured times, and measures nothing."""

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
    medians = [timing.median for timing in timings]
    labels = [seconds_text(median) for median in medians]
    values = [f"{name} {label}" for name, label in zip(names, labels, strict=True)]
    what, how, under = "start-up time", "one start of each", "one round"
    if rounds > 1:
        what, how = "median start-up time", "with quartiles"
        under = f"median and quartiles of {rounds} rounds, taken in turn"
        spreads = [f"({seconds_text(t.q1)} to {seconds_text(t.q3)})" for t in timings]
        values = [f"{value} {spread}" for value, spread in zip(values, spreads, strict=True)]
    alt = f"Bars of the {what} of two ranks by launcher, {how}: {'; '.join(values)}."
    figure, axis = new_figure(7.2, 0.9 + 0.38 * len(names), alt=alt)
    axis.barh(names, medians, height=0.6, color=_BAR, edgecolor=INK, linewidth=0.6)
    if rounds > 1:
        spread = [[t.median - t.q1 for t in timings], [t.q3 - t.median for t in timings]]
        axis.errorbar(
            medians, names, xerr=spread, fmt="none", ecolor=INK, elinewidth=1.2, capsize=3
        )
    beside = {"textcoords": "offset points", "va": "center", "fontsize": 8, "color": INK}
    for name, label, timing in zip(names, labels, timings, strict=True):
        axis.annotate(label, (timing.q3, name), (6, 0), **beside)
    axis.invert_yaxis()
    axis.set_xlim(0, 1.12 * max(timing.q3 for timing in timings))
    axis.tick_params(axis="y", length=0, labelsize=9)
    axis.set_xlabel("seconds", fontsize=8, color=INK)
    title(axis, "From the command to the first all-reduce", f"two ranks, gloo; {under}")
    return figure
