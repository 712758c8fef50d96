"""The figures of chapter 05. They draw data, and compute nothing."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from amp_course.kit.colours import FAINT, FORMAT_COLOURS, INK
from amp_course.kit.style import new_figure, title
from amp_course.scaler.timeline import Timeline


def resume_figure(timelines: Mapping[str, Timeline]) -> Figure:
    """Draw the loss scale of trainings that were resumed, with a cross on each skipped step."""
    runs = "; ".join(
        f"{name}: from {run.scales[0]:g} to {run.scales[-1]:g}, {sum(run.skipped)} steps skipped"
        for name, run in timelines.items()
    )
    figure, axis = new_figure(7.2, 2.6, alt=f"Loss scale by step after resuming. {runs}.")
    looks = (FORMAT_COLOURS["fp16"], "-"), (INK, "--")
    for (name, run), (colour, style) in zip(timelines.items(), looks, strict=True):
        steps = range(1, len(run.scales) + 1)
        axis.step(steps, run.scales, where="mid", color=colour, ls=style, lw=1.6, label=name)
        skips = [step for step in steps if run.skipped[step - 1]]
        axis.plot(skips, [run.scales[step - 1] for step in skips], "x", color=colour, ms=7)
    axis.set_yscale("log", base=2)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set_xlabel("step after resuming (a cross: skipped)", fontsize=8)
    axis.legend(fontsize=8, frameon=False)
    title(axis, "Resumed with and without the scaler's state", "loss scale by step")
    return figure


def timeline_figure(timeline: Timeline, marked: Mapping[int, str] | None = None) -> Figure:
    """Draw the loss scale and the loss of a run by step, with the skipped steps marked on both.

    marked: step → a few words about it, such as {50: "outlier"}
    """
    steps = range(len(timeline.scales))
    skips = [step for step in steps if timeline.skipped[step]]
    alt = (
        f"The loss scale over {len(steps)} steps, from {timeline.scales[0]:,.0f} to "
        f"{timeline.scales[-1]:,.0f}, above the loss, from {timeline.losses[0]:.2g} to "
        f"{timeline.losses[-1]:.2g}; {len(skips)} skipped steps are marked."
    )
    figure, (above, below) = new_figure(7.6, 4.0, rows=2, sharex=True, alt=alt)
    colour = FORMAT_COLOURS["fp16"]
    above.step(steps, timeline.scales, where="post", color=colour, lw=1.5)
    above.set_yscale("log", base=2)
    below.plot(steps, timeline.losses, color=INK, lw=1.2)
    used = [timeline.scales[step] for step in skips]
    above.plot(skips, used, "x", color=INK, ms=7, mew=2, label="skipped step")
    for axis in (above, below):
        for step in skips:
            axis.axvline(step, color=FAINT, lw=0.8, ls=":")
    for step, words in (marked or {}).items():
        place = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
        below.annotate(words, (step, 1.0), (4, -10), fontsize=8, **place)
    if skips:
        above.legend(fontsize=8, frameon=False, loc="upper right")
    below.set_ylim(bottom=0)
    below.set_xlabel("step", fontsize=8)
    title(above, "The scale finds itself", "loss scale used, powers of two")
    title(below, "Skipped steps leave the weights alone", "loss")
    return figure
