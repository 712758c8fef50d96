"""The figures of chapter 09; they draw computed numbers, and compute nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import NullFormatter

from amp_course.kit.colours import COLOURS, FAINT, FORMAT_COLOURS, FORMAT_LINES, INK
from amp_course.kit.measure import TOO_BUSY, seconds_text
from amp_course.kit.style import FEWER_DOTS, new_figure, title
from amp_course.speed.counting import CAST, MATMUL, OTHER
from amp_course.speed.machine import Machine
from amp_course.speed.opening import Opening
from amp_course.speed.prediction import Prediction
from amp_course.speed.roof_labels import (
    LEAST,
    MOST,
    STRIP_END,
    in_strip,
    rate_text,
    roof_label,
    roofs_in_words,
    same_height,
)
from amp_course.speed.roofline import Bound, PlacedOps, Roofline
from amp_course.speed.two_clocks import Clocks

# kind of op → marker and colour
KINDS = {MATMUL: ("o", "#0072B2"), CAST: ("X", "#D55E00"), OTHER: ("s", "#8a8a8a")}
BOUNDS: dict[Bound, tuple[str, str]] = {  # what takes the longest → colour and hatch
    "launch": ("#E69F00", "//"),
    "memory": ("#56B4E9", ".."),
    "compute": ("#0072B2", ""),
}
_TICKS = (  # of speed-ups
    *(0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8),
    *(1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 4, 5, 6, 8, 10),
)
_WIDE_TICKS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
_IN_A_ROW = 5  # marks in the strip
_LEGEND: dict[str, Any] = {
    "fontsize": 8,
    "frameon": False,
    "loc": "outside lower center",
    "ncols": 4,
}


def clocks_figure(clocks: Sequence[Clocks]) -> Figure:
    """Draw host and GPU on one time axis, a pair of rows for each way to train."""
    shares = "; ".join(f"{run.name}: the GPU is busy {run.busy:.0%} of the time" for run in clocks)
    alt = f"What host and GPU do at each moment of three steps. {shares}."
    size = (9.0, 0.95 * len(clocks) + 0.5)
    figure, axes = new_figure(*size, rows=len(clocks), sharex=True, dots=FEWER_DOTS, alt=alt)
    for axis, run in zip(axes, clocks, strict=True):
        for row, spans, colour in (
            (1, run.waits, "#dddddd"),
            (1, run.host, "#E69F00"),
            (0, run.gpu, "#0072B2"),
        ):
            bars = [(1e6 * begin, 1e6 * (end - begin)) for begin, end in spans]
            edge = "white" if row else colour  # the GPU's may be narrower than a line
            axis.broken_barh(bars, (row - 0.4, 0.8), facecolors=colour, edgecolor=edge, lw=0.3)
        axis.set_yticks((0, 1), ("GPU", "host"))
        axis.set_ylim(-0.5, 1.5)
        axis.set_title(f"{run.name}: GPU busy {run.busy:.0%}", loc="left", fontsize=9, color=INK)
    axes[-1].set_xlabel(
        "µs (orange: the host launches an op; grey: it waits; blue: the GPU runs one)", fontsize=8
    )
    return figure


def roofline_figure(roofline: Roofline, ops: Sequence[PlacedOps]) -> Figure:
    """Draw a machine's roofs, and on it a step's ops, as large as their share of the time."""
    bounds = {bound: sum(op.share for op in ops if op.bound == bound) for bound in BOUNDS}
    by_kind = {kind: [op for op in ops if op.kind == kind] for kind in KINDS}
    kinds = {kind: _share_in_words(kind, alike) for kind, alike in by_kind.items() if alike}
    alt = (
        f"Roofline of {roofline.name}, FLOPs per second by FLOPs per byte: "
        f"{roofs_in_words(roofline)}. Time of the step by kind of op: "
        f"{', '.join(kinds.values()) or 'none'}; by what bounds it: "
        f"{', '.join(f'{bound} {_percent(share)}' for bound, share in bounds.items())}."
    )
    figure, axis = new_figure(7.6, 4.2, alt=alt, dots=FEWER_DOTS)
    _draw_roofs(axis, roofline)
    floor = min([axis.get_ylim()[0], *(op.flops_per_second / 3 for op in ops if op.flops)])
    axis.set_ylim(floor, None)
    top = axis.get_ylim()[1]
    uncounted = [op for alike in by_kind.values() for op in alike if not op.flops]
    for op in ops:
        marker, colour = KINDS[op.kind]
        x, y = op.intensity, op.flops_per_second
        if not op.flops:  # in rows, from the bottom
            row, place = divmod(uncounted.index(op), _IN_A_ROW)
            x, y = in_strip((place + 0.5) / _IN_A_ROW), floor * (top / floor) ** (0.06 + 0.09 * row)
        axis.scatter(
            x, y, 16 + 420 * op.share, colour, marker=marker, edgecolors="white", lw=0.6, zorder=3
        )
    handles = [
        Line2D([], [], ls="", marker=KINDS[kind][0], color=KINDS[kind][1], label=label)
        for kind, label in kinds.items()
    ]
    figure.legend(handles=handles, **_LEGEND)
    under = "FLOPs per second; a larger mark takes more of the time"
    title(axis, f"Where the ops of a step land: {roofline.name}", under)
    return figure


def _share_in_words(kind: str, ops: Sequence[PlacedOps]) -> str:
    """Write a kind's share of the time, with its largest two ops: "matmul 52 % (mm 34 %, …)"."""
    names: dict[str, float] = {}
    for op in ops:
        name = op.op.removeprefix("aten.").strip("_")
        names[name] = names.get(name, 0.0) + op.share
    largest = sorted(names, key=lambda name: -names[name])[:2]
    inside = ", ".join(f"{name} {_percent(names[name])}" for name in largest)
    inside = f" ({inside})" if len(names) > 1 else ""
    return f"{kind} {_percent(sum(names.values()))}{inside}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _draw_roofs(axis: Axes, roofline: Roofline) -> None:
    """Draw each format's roof with its ridge, and the strip for ops without counted FLOPs."""
    top = max(roofline.peak_flops.values())
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xlim(LEAST, MOST)
    axis.set_ylim(LEAST * roofline.bandwidth / 60, 4 * top)
    axis.axvspan(LEAST, STRIP_END, color="#f0f0f0", lw=0)
    strip = "no FLOPs counted:\nplace and height\nmean nothing"
    axis.text(LEAST * 1.1, 3 * top, strip, fontsize=7, color=INK, va="top")
    for names in same_height(roofline):
        fmt, peak = names[0], roofline.peak_flops[names[0]]
        ridge = max(roofline.ridge(fmt), LEAST)
        roof, colour = (min(STRIP_END, ridge), ridge, MOST), FORMAT_COLOURS[fmt]
        heights = [roofline.attainable(x, fmt) for x in roof]
        axis.plot(roof, heights, lw=1.6, color=colour, ls=FORMAT_LINES[fmt])
        axis.plot([ridge], [peak], "o", ms=4, mfc="white", color=colour)
        label = roof_label(roofline, names)
        axis.text(MOST, peak * 1.08, label, fontsize=8, ha="right", va="bottom", color=INK)
    axis.set_xticks(
        [2**n for n in range(-2, 15, 2)], ["¼", *(f"{2**n:,}" for n in range(0, 15, 2))]
    )
    axis.set_xlabel("FLOPs per byte moved", fontsize=8)


def opening_figure(opening: Opening) -> Figure:
    """Draw a step's time by width as a multiple of fp32's, stacked by what bounds its ops."""
    times = "; ".join(
        f"width {pair.width:,}: fp32 {seconds_text(pair.fp32.seconds)}, AMP "
        f"{seconds_text(pair.amp.seconds)}"
        for pair in opening.pairs
    )
    crossing = "AMP is never faster"
    if opening.crossing:
        crossing = f"AMP is faster from width {opening.crossing:,} on"
    alt = (
        f"Time of a training step of three linear layers on {opening.name}, by width. {times}. "
        f"{crossing}."
    )
    figure, axis = new_figure(7.6, 3.6, alt=alt, dots=FEWER_DOTS)
    styles: dict[Bound, dict[str, Any]] = {
        bound: {"facecolor": colour, "hatch": hatch * 2, "edgecolor": "white"}
        for bound, (colour, hatch) in BOUNDS.items()
    }
    top = 1.25 * max(1, *(1 / pair.speedup for pair in opening.pairs))
    for place, pair in enumerate(opening.pairs):
        for shift, cost, name in ((-0.2, pair.fp32, "fp32"), (0.2, pair.amp, "AMP")):
            base = 0.0
            for bound, style in styles.items():
                height = cost.seconds_by[bound] / pair.fp32.seconds
                axis.bar(place + shift, height, 0.38, base, lw=0, **style)
                base += height
            label = f"{name}\n{seconds_text(cost.seconds)}"
            end = base + top / 100
            axis.text(place + shift, end, label, fontsize=6.5, ha="center", va="bottom", color=INK)
    axis.axhline(1, color=FAINT, lw=0.8, ls=":")
    if opening.crossing:
        faster = sum(pair.width < opening.crossing for pair in opening.pairs) - 0.5
        axis.axvline(faster, color=INK, lw=1, ls="--")
        axis.text(faster + 0.08, top, f"{crossing} →", fontsize=8, va="top", color=INK)
    axis.set_xticks(range(len(opening.pairs)), [f"{pair.width:,}" for pair in opening.pairs])
    axis.set_xlim(-0.6, len(opening.pairs) - 0.4)
    axis.set_ylim(0, top)
    axis.set_xlabel("width of the three layers", fontsize=8)
    handles = [Patch(**style, label=f"bound by {bound}") for bound, style in styles.items()]
    figure.legend(handles=handles, **_LEGEND)
    head = f"Three linear layers on {opening.name}, AMP in {opening.fmt}"
    title(axis, head, "time of a step; fp32 = 1")
    return figure


def rates_figure(machine: Machine) -> Figure:
    """Draw the rate of square matmuls by size and format, and note below what was left out."""
    best = "; ".join(f"{fmt} {rate_text(peak)}" for fmt, peak in machine.peaks.items())
    notes = [f"{fmt} {why}" for fmt, why in machine.whys.items()]
    alt = (
        f"Rate of a matmul of two square matrices on this machine ({machine.device}), by size. "
        f"Best rates: {best}."
    )
    alts = [*filter(None, [machine.busy]), alt, *(f"{note}." for note in notes)]
    figure, axis = new_figure(7.2, 3.2, alt=" ".join(alts))
    for (fmt, rates), marker in zip(machine.by_format.items(), "os^D", strict=False):
        if rates:
            style = {"color": FORMAT_COLOURS[fmt], "ls": FORMAT_LINES[fmt], "marker": marker}
            axis.plot([*rates], [*rates.values()], lw=1.6, ms=5, label=fmt, **style)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xticks(machine.sizes, [f"{size:,}" for size in machine.sizes])
    timed = [rate.flops for rate in machine.rates if rate.flops]
    axis.set_ylim(10 ** math.floor(math.log10(min(timed))), 1.3 * max(timed))
    axis.yaxis.set_major_formatter(
        lambda value, _: rate_text(value).replace(".00 ", " ").replace(".0 ", " ")
    )
    axis.set_xlabel("\n".join(["size of the matrices", *notes]), fontsize=8)
    axis.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    head = f"How fast matmuls run here ({machine.device})"
    under = "FLOPs per second; higher is faster"
    title(axis, *((TOO_BUSY, head) if machine.busy else (head, under)))
    return figure


def prediction_figure(predictions: Sequence[Prediction]) -> Figure:
    """Draw the ceiling, the predicted and the measured speed-up of each workload."""
    speedups = "; ".join(
        f"{one.title}: ceiling {one.ceiling:.2g}, predicted {one.predicted:.2g}, measured "
        f"{one.measured:.2g}"
        for one in predictions
    )
    label = predictions[0].recipe.label
    busy = max((one.busy for one in predictions), default="")
    alt = f"{busy or f'Speed-up of {label} over fp32.'} {speedups}."
    figure, axis = new_figure(7.4, 0.9 + 0.8 * len(predictions), alt=alt, dots=FEWER_DOTS)
    for row, prediction in enumerate(predictions):
        fp32, amp = prediction.fp32.timing, prediction.amp.timing
        measured, colour = prediction.measured, COLOURS[prediction.recipe.name]
        quartiles = [fp32.q1 / amp.q3, fp32.q3 / amp.q1]
        axis.plot(quartiles, [row, row], lw=6, alpha=0.35, solid_capstyle="butt", color=colour)
        for value, marker, size, face, edge, name in (
            (prediction.ceiling, "|", 16, colour, INK, "ceiling: faster matmuls alone"),
            (prediction.predicted, "D", 11, "none", INK, "predicted from the ops"),
            (measured, "o", 7, colour, colour, "measured, fastest steps; bar: quartiles"),
        ):
            style = {"ms": size, "mew": 2, "mfc": face, "mec": edge}
            axis.plot([value], [row], marker, label="" if row else name, zorder=3, **style)
        style = {"textcoords": "offset points", "ha": "center", "fontsize": 8}
        axis.annotate(f"{measured:.2g}", (measured, row), (0, 10), **style)
    axis.axvline(1, color=INK, lw=1)
    axis.set_xscale("log")
    values = {1.0}.union(*((one.ceiling, one.predicted, one.measured) for one in predictions))
    axis.set_xlim(min(values) / 1.3, max(values) * 1.3)
    low, high = axis.get_xlim()
    ticks = _WIDE_TICKS if high > 8 * low else _TICKS
    axis.set_xticks([tick for tick in ticks if low <= tick <= high])
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}×")
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.set_yticks(range(len(predictions)), [one.title for one in predictions])
    axis.set_ylim(len(predictions) - 0.5, -0.6)
    axis.set_xlabel("times as fast as fp32 (log scale)", fontsize=8)
    head = f"What {label} should buy, and what it does"
    title(axis, TOO_BUSY if busy else head, head if busy else "")
    figure.legend(**_LEGEND)
    return figure
