"""The figures of chapter 05. They take numbers that were computed, and compute nothing."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from amp_course.bits.formats import FloatFormat
from amp_course.bits.numerals import raised
from amp_course.kit.colours import FAINT, FORMAT_COLOURS, INK
from amp_course.kit.colours import ZONES as LOOKS
from amp_course.kit.style import new_figure, title
from amp_course.scaler.timeline import Timeline
from amp_course.scaler.window import Window
from amp_course.underflow.panel_html import percent
from amp_course.underflow.zones import ZONES, ZoneHistogram


def scale_figure(
    histogram: ZoneHistogram,
    fmt: FloatFormat,
    exponent: int,
    sweep: Mapping[int, Mapping[str, float]],
    window: Window | None,
) -> Figure:
    """Draw the gradients scaled by 2^exponent by zone, above the shares at every loss scale,
    with the useful ones marked.
    """
    shares, useful = (
        sweep[exponent],
        f"2^{window.lowest} to 2^{window.highest} are useful" if window else "none is useful",
    )
    figure, (above, below) = new_figure(
        7.6,
        4.6,
        rows=2,
        height_ratios=[1.5, 1],
        alt=f"Gradients by size in {fmt.name} at a loss scale of 2^{exponent}: "
        f"{percent(shares['lost'])} are lost and {percent(shares['overflow'])} overflow. Below, "
        f"the same shares at every loss scale, of which {useful}.",
    )
    _columns(above, dict(zip(histogram.exponents, _rows(histogram), strict=True)))
    above.set_yticks([])
    above.set_xlabel("size of a gradient after scaling, power of two", fontsize=8)
    title(
        above,
        f"Gradients times 2{raised(exponent)} in {fmt.name}",
        "how many of each size, by what becomes of them",
    )
    _columns(below, sweep)
    below.set_ylim(0, 1.25)
    below.set_yticks([0, 0.5, 1], ["0", "50 %", "100 %"])
    below.set_xlabel("loss scale, power of two", fontsize=8)
    below.axvline(exponent, color=INK, lw=1.6)
    if window:
        below.plot(
            [window.lowest - 0.5, window.highest + 0.5], [1.1, 1.1], color=INK, lw=2, marker="|"
        )
        below.text(
            (window.lowest + window.highest) / 2,
            1.14,
            "useful",
            ha="center",
            va="bottom",
            fontsize=8,
        )
    handles = [
        Patch(
            facecolor=LOOKS[zone][0],
            hatch=LOOKS[zone][1] * 2,
            edgecolor="white",
            label=f"{zone} {percent(share)}",
        )
        for zone, share in shares.items()
    ]
    figure.legend(handles=handles, fontsize=8, frameon=False, ncols=4, loc="outside lower center")
    return figure


def _rows(histogram: ZoneHistogram) -> list[dict[str, float]]:
    return [
        {zone: histogram.counts[zone][n] for zone in ZONES} for n in range(len(histogram.exponents))
    ]


def _columns(axis: object, columns: Mapping[int, Mapping[str, float]]) -> None:
    """Stack the zones of each exponent."""
    places, base = list(columns), [0.0] * len(columns)
    for zone in ZONES:
        heights = [column[zone] for column in columns.values()]
        colour, hatch = LOOKS[zone]
        axis.bar(places, heights, 0.9, base, color=colour, hatch=hatch * 2, edgecolor="white", lw=0)  # type: ignore[attr-defined]
        base = [low + height for low, height in zip(base, heights, strict=True)]


def resume_figure(timelines: Mapping[str, Timeline]) -> Figure:
    """Draw the loss scale of trainings that were resumed, with a cross on each skipped step."""
    told = "; ".join(
        f"{name}: from {one.scales[0]:g} to {one.scales[-1]:g}, {sum(one.skipped)} steps skipped"
        for name, one in timelines.items()
    )
    figure, axis = new_figure(7.2, 2.6, alt=f"Loss scale by step after resuming. {told}.")
    for (name, one), (colour, style) in zip(
        timelines.items(), ((FORMAT_COLOURS["fp16"], "-"), (INK, "--")), strict=True
    ):
        steps = range(1, len(one.scales) + 1)
        axis.step(steps, one.scales, where="mid", color=colour, ls=style, lw=1.6, label=name)
        lost = [step for step in steps if one.skipped[step - 1]]
        axis.plot(lost, [one.scales[step - 1] for step in lost], "x", color=colour, ms=7)
    axis.set_yscale("log", base=2)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set_xlabel("step after resuming (a cross: skipped)", fontsize=8)
    axis.legend(fontsize=8, frameon=False)
    title(axis, "Resumed with and without the scaler's state", "loss scale by step")
    return figure


def timeline_figure(timeline: Timeline, marked: Mapping[int, str] | None = None) -> Figure:
    """Draw the loss scale and the loss of a run, step by step, with the skipped steps marked on
    both.

    marked: step → a few words about it, such as {50: "outlier"}
    """
    steps = range(len(timeline.scales))
    skips = [step for step in steps if timeline.skipped[step]]
    figure, (above, below) = new_figure(
        7.6,
        4.0,
        rows=2,
        sharex=True,
        alt=f"The loss scale over {len(steps)} steps, from {timeline.scales[0]:,.0f} to "
        f"{timeline.scales[-1]:,.0f}, above the loss, from {timeline.losses[0]:.2g} to "
        f"{timeline.losses[-1]:.2g}; {len(skips)} skipped steps are marked.",
    )
    colour = FORMAT_COLOURS["fp16"]
    above.step(steps, timeline.scales, where="post", color=colour, lw=1.5)
    above.set_yscale("log", base=2)
    below.plot(steps, timeline.losses, color=INK, lw=1.2)
    above.plot(
        skips,
        [timeline.scales[step] for step in skips],
        "x",
        color=INK,
        ms=7,
        mew=2,
        label="skipped step",
    )
    for axis in (above, below):
        for step in skips:
            axis.axvline(step, color=FAINT, lw=0.8, ls=":")
    for step, words in (marked or {}).items():
        below.annotate(
            words,
            (step, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(4, -10),
            fontsize=8,
            textcoords="offset points",
        )
    if skips:
        above.legend(fontsize=8, frameon=False, loc="upper right")
    below.set_ylim(bottom=0)
    below.set_xlabel("step", fontsize=8)
    title(above, "The scale finds itself", "loss scale used, powers of two")
    title(below, "Skipped steps leave the weights alone", "loss")
    return figure
