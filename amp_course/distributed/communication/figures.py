"""The figures of communication between ranks. They draw computed numbers, and compute nothing."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from amp_course.bits.formats import BF16, FP16, FP32
from amp_course.distributed.communication.accuracy import ReductionError
from amp_course.distributed.communication.counting import CollectiveCall, Phase
from amp_course.distributed.communication.ring import HalvedBytes
from amp_course.kit.colours import FAINT, FORMAT_COLOURS, INK, PARTS
from amp_course.kit.markup import percent
from amp_course.kit.measure import seconds_text
from amp_course.kit.style import FEWER_DOTS, new_figure, title

_FORMATS = {fmt.torch_name: fmt.name for fmt in (BF16, FP16, FP32)}
_OTHER = "other dtypes"
_DTYPES = {
    **{fmt: FORMAT_COLOURS[fmt] for fmt in ("fp32", "bf16", "fp16")},
    _OTHER: FAINT,
}  # of what is sent → colour
_PHASES: dict[Phase, tuple[str, str]] = {  # of a step → in words, hatch
    "forward": ("forward", ""),
    "backward": ("backward", "//"),
    "optimizer": ("optimizer", "xx"),
    "other": ("clipping and other", ".."),
}
_STATE = (  # in words, bytes a parameter, colour and hatch
    ("weights", 4, PARTS["parameters"]),
    ("gradients", 4, PARTS["gradients"]),
    ("Adam's two averages", 8, PARTS["optimizer_state"]),
)
_GPU = 80  # GB, drawn as a line
_NAMED = 0.08  # of the longest bar: a shorter part has no room for its dtype
_IN_A_BAR: dict[str, Any] = {
    "ha": "center",
    "va": "center",
    "fontsize": 7.5,
    "color": INK,
    "bbox": {
        "boxstyle": "round,pad=0.15",
        "facecolor": "white",
        "edgecolor": "none",
        "alpha": 0.85,
    },
}
_LINES = (  # colour, linestyle and marker of each line, in order
    ("#D55E00", "-", "o"),
    ("#E69F00", "--", "s"),
    ("#CC79A7", "-.", "^"),
    ("#009E73", "-", "D"),
    ("#56B4E9", "--", "v"),
    ("#0072B2", ":", "x"),
)
_LEGEND: dict[str, Any] = {
    "fontsize": 8,
    "frameon": False,
    "loc": "outside lower center",
    "handlelength": 3,
}
_BESIDE: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": 8}


def traffic_figure(calls: Mapping[str, Sequence[CollectiveCall]]) -> Figure:
    """Draw the bytes that each rank sends in a step as a bar for each setup: colour for the dtype,
    hatch for the phase.

    calls: name of the setup → its collectives; those of the construction are left out
    """
    steps = {
        name: [call for call in found if call.phase != "construction"]
        for name, found in calls.items()
    }
    totals = {name: sum(call.sent_bytes for call in found) for name, found in steps.items()}
    ranks = max(call.ranks for found in steps.values() for call in found)
    summary = "; ".join(f"{name} {_kilobytes(total)}" for name, total in totals.items())
    alt = (
        f"Bars of the bytes that each of {ranks:,} ranks sends in a training step, by dtype and "
        f"phase: {summary}."
    )
    figure, axis = new_figure(7.6, 1.2 + 0.3 * len(steps), alt=alt, dots=FEWER_DOTS)
    drawn: set[tuple[str, Phase]] = set()
    for row, (name, found) in enumerate(steps.items()):
        sent: dict[tuple[Phase, str], float] = {}  # in kB
        for call in found:
            part = call.phase, _FORMATS.get(call.dtype, _OTHER)
            sent[part] = sent.get(part, 0.0) + call.sent_bytes / 1e3
        left = 0.0
        for phase, fmt in itertools.product(_PHASES, (*_FORMATS.values(), _OTHER)):
            size = sent.get((phase, fmt), 0.0)
            if not size:
                continue
            drawn.add((fmt, phase))
            style = {"color": _DTYPES[fmt], "hatch": _PHASES[phase][1], "edgecolor": "white"}
            axis.barh(row, size, 0.7, left, lw=0, **style)
            # the dtype in words, as a second cue next to its colour
            if 1e3 * size > _NAMED * max(totals.values()):
                axis.text(left + size / 2, row, fmt, **_IN_A_BAR)
            left += size
        axis.annotate(_kilobytes(totals[name]), (left, row), (5, 0), **_BESIDE)
    _name_bars(axis, steps)
    axis.set_xlim(0, 1.12 * max(totals.values()) / 1e3)
    axis.set_xlabel("kB sent by each rank, if all collectives are rings", fontsize=8)
    handles = [
        Patch(facecolor=colour, hatch=hatch, edgecolor="white", label=f"{fmt}, {words}")
        for fmt, colour in _DTYPES.items()
        for phase, (words, hatch) in _PHASES.items()
        if (fmt, phase) in drawn
    ]
    figure.legend(handles=handles, **_LEGEND | {"ncols": 4, "handlelength": 2})
    title(
        axis,
        "What a training step sends",
        f"counted on a fake group of {ranks:,} ranks; bytes by dtype and phase",
    )
    return figure


def _name_bars(axis: Any, names: Collection[str]) -> None:
    """Name horizontal bars, the first on top."""
    axis.set_yticks(range(len(names)), list(names))
    axis.tick_params(axis="y", length=0)
    axis.invert_yaxis()


def _kilobytes(size: float) -> str:
    return f"{size / 1e3:,.0f} kB"


def reduction_figure(
    rows: Mapping[str, Sequence[ReductionError]], under: str = "where nothing overflows"
) -> Figure:
    """Draw error, lost and overflowed elements of 16-bit means against the number of ranks, a line
    for each way.

    The error is drawn only where nothing overflows: of the finite elements alone, it means little.
    Colour is the dtype that travels; rings are solid, trees dashed, sums in another dtype dotted.

    rows:  name of the way → its measurements, by ranks
    under: what was reduced, for the second line of the title
    """
    ends = "; ".join(
        f"{name}: relative error {way[-1].relative_error:.2g}, lost {percent(way[-1].share_lost)}, "
        f"overflowed {percent(way[-1].share_overflowed)}"
        for name, way in rows.items()
    )
    most = max(way[-1].ranks for way in rows.values())
    alt = (
        f"Three plots against the number of ranks: relative error, share lost, share overflowed. "
        f"At {most:,} ranks, {ends}."
    )
    figure, axes = new_figure(7.8, 3.4, columns=3, alt=alt)
    for (name, way), (_, _, marker) in zip(rows.items(), _LINES, strict=False):
        last, ranks = way[-1], [row.ranks for row in way]
        style = ":" if last.accumulate != last.dtype else {"ring": "-", "tree": "--"}[last.order]
        colour = _DTYPES[_FORMATS[str(last.dtype).removeprefix("torch.")]]
        _draw_way(axes, ranks, way, name, color=colour, ls=style, marker=marker)
        if not last.share_overflowed:
            error = 100 * last.relative_error
            end = f"{error:.{1 if error > 10 else 2}f} %"
            axes[0].annotate(end, (last.ranks, error), (6, 0), **_BESIDE)
    ticks = sorted({row.ranks for way in rows.values() for row in way})[::2]
    for axis in axes:
        axis.set_xscale("log", base=2)
        axis.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        axis.set_xlabel("ranks", fontsize=8)
    axes[0].set_xlim(right=4 * most)  # room for the last values
    for axis in axes[1:]:
        axis.set_ylim(-0.03 * max(1.0, axis.get_ylim()[1]), max(1.0, axis.get_ylim()[1]))
    _name_axes(axes, "Relative error", under)
    figure.legend(**_LEGEND | {"ncols": 3})
    return figure


def _draw_way(
    axes: Any, at: Sequence[float], way: Sequence[ReductionError], name: str, **style: Any
) -> None:
    """Draw a way's error, lost and overflowed elements in percent, an axis each."""
    style |= {"lw": 1.5, "ms": 4, "mfc": "white"}
    errors = [math.nan if row.share_overflowed else 100 * row.relative_error for row in way]
    axes[0].plot(at, errors, label=name, **style)
    axes[1].plot(at, [100 * row.share_lost for row in way], **style)
    axes[2].plot(at, [100 * row.share_overflowed for row in way], **style)


def _name_axes(axes: Any, error: str, under: str) -> None:
    axes[0].set_yscale("log")
    for axis in axes:
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:g} %")
    title(axes[0], error, under)
    title(axes[1], "Lost", "became 0")
    title(axes[2], "Overflowed", "became inf or NaN")


def scale_window_figure(rows: Mapping[str, Sequence[ReductionError]]) -> Figure:
    """Draw error, lost and overflowed elements of 16-bit means against the loss scale, a line for
    each way; the error only where nothing overflows.

    rows: name of the way → its measurements, by loss scale (a power of two)
    """
    ranks = next(iter(rows.values()))[0].ranks
    windows = "; ".join(f"{name}: {_window(way)}" for name, way in rows.items())
    alt = (
        f"Relative error, share lost and share overflowed in the mean over {ranks:,} ranks, by "
        f"loss scale. {windows}."
    )
    figure, axes = new_figure(7.4, 5.0, rows=3, sharex=True, alt=alt, dots=FEWER_DOTS)
    for (name, way), (colour, style, marker) in zip(rows.items(), _LINES, strict=False):
        scales = [row.scale for row in way]
        _draw_way(axes, scales, way, name, color=colour, ls=style, marker=marker)
    for axis in axes:
        axis.set_xscale("log", base=2)
    axes[2].set_xlabel("loss scale", fontsize=8)
    _name_axes(axes, f"Relative error of the mean over {ranks:,} ranks", "where nothing overflows")
    figure.legend(**_LEGEND | {"ncols": 3})
    return figure


def _window(way: Sequence[ReductionError]) -> str:
    """Say at which loss scales nothing is lost and nothing overflows."""
    fine = [row.scale for row in way if not row.share_lost and not row.share_overflowed]
    if not fine:
        return "no scale is free of both"
    low, high = (round(math.log2(scale)) for scale in (fine[0], fine[-1]))
    return f"nothing is lost or overflows from 2^{low} to 2^{high}"


def ring_figure(rows: Sequence[HalvedBytes], under: str) -> Figure:
    """Draw the time of a step against the number of ranks, for 4-byte and 2-byte gradients, a plot
    for each overlap.

    under: the model and the links, for the second line of the title
    """
    overlaps = sorted({row.overlap for row in rows})
    summary = "; ".join(
        f"{row.ranks:,} ranks, {_overlap_in_words(row.overlap)}: {seconds_text(row.step_fp32)} and "
        f"{seconds_text(row.step_16_bit)}, {row.speedup:.2f} times as fast"
        for row in rows
    )
    alt = f"Time of a training step by ranks, with 4-byte and with 2-byte gradients. {summary}."
    figure, axes = new_figure(7.6, 3.3, columns=len(overlaps), alt=alt, sharey=True, squeeze=False)
    top = max(row.step_fp32 for row in rows)
    for axis, overlap in zip(axes[0], overlaps, strict=True):
        part = [row for row in rows if row.overlap == overlap]
        ranks = [row.ranks for row in part]
        for label, seconds, colour, style in (
            ("fp32: 4 bytes", [row.step_fp32 for row in part], FORMAT_COLOURS["fp32"], "-"),
            ("16 bits: 2 bytes", [row.step_16_bit for row in part], FORMAT_COLOURS["fp16"], "--"),
        ):
            axis.plot(ranks, seconds, color=colour, ls=style, lw=1.8, marker="o", ms=4, label=label)
        for row, side in ((part[0], "left"), (part[-1], "right")):
            label, at = f"{row.speedup:.2f}× as fast", (row.ranks, row.step_16_bit)
            axis.annotate(
                label, at, (0, -15), textcoords="offset points", ha=side, fontsize=8, color=INK
            )
        axis.set_xscale("log", base=2)
        axis.set_xticks(ranks, [f"{n:,}" for n in ranks])
        axis.margins(x=0.1)
        axis.set_ylim(0, 1.15 * top)
        axis.set_xlabel("ranks", fontsize=8)
        # the space keeps all titles at one height
        second_line = under if overlap == overlaps[0] else " "
        title(axis, _overlap_in_words(overlap).capitalize(), second_line)
    axes[0][0].set_ylabel("seconds for a step", fontsize=8)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, **_LEGEND | {"ncols": 2})
    return figure


def _overlap_in_words(overlap: float) -> str:
    return f"{100 * overlap:.0f} % of the computation can overlap" if overlap else "no overlap"


def state_figure(parameters: int, ranks: Sequence[int]) -> Figure:
    """Draw what each rank keeps between two steps of Adam in fp32: all of it under DDP, a share
    under FSDP2.

    parameters: of the model
    ranks:      numbers of ranks that FSDP2 shards over
    """
    shares = {"DDP, any number of ranks": 1.0} | {f"FSDP2, {n:,} ranks": 1 / n for n in ranks}
    summary = "; ".join(
        f"{name} {16 * parameters * share / 1e9:.3g} GB" for name, share in shares.items()
    )
    alt = (
        f"Bars of what each rank keeps of {parameters / 1e9:g} billion parameters, with a line at "
        f"{_GPU:g} GB: {summary}."
    )
    figure, axis = new_figure(7.6, 1.2 + 0.3 * len(shares), alt=alt)
    for row, share in enumerate(shares.values()):
        left = 0.0
        for _, size, (colour, hatch) in _STATE:
            width = size * parameters * share / 1e9
            axis.barh(row, width, 0.7, left, color=colour, hatch=hatch, edgecolor="white", lw=0)
            left += width
        axis.annotate(f"{left:.3g} GB", (left, row), (5, 0), **_BESIDE)
    axis.axvline(_GPU, color=INK, lw=1, ls="--")
    _name_bars(axis, shares)
    axis.set_xlim(0, 1.15 * max(16e-9 * parameters, _GPU))
    axis.set_xlabel(f"GB; the line is a GPU with {_GPU:g} GB", fontsize=8)
    handles = [
        Patch(facecolor=colour, hatch=hatch, edgecolor="white", label=f"{name}, {size} bytes each")
        for name, size, (colour, hatch) in _STATE
    ]
    figure.legend(handles=handles, **_LEGEND | {"ncols": 3, "handlelength": 2})
    under = f"{parameters / 1e9:g} billion parameters, trained with Adam in fp32 or under autocast"
    title(axis, "What each rank keeps", under)
    return figure
