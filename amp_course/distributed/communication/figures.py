"""The figures of communication between ranks. They take numbers that were computed,
and compute nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from amp_course.bits.formats import BF16, FP16, FP32
from amp_course.distributed.communication.accuracy import ReductionError
from amp_course.distributed.communication.counting import CollectiveCall, Phase
from amp_course.distributed.communication.ring import HalvedBytes
from amp_course.kit.colours import FAINT, FORMAT_COLOURS, INK, PARTS
from amp_course.kit.measure import seconds_text
from amp_course.kit.style import FEWER_DOTS, new_figure, title
from amp_course.underflow.panel_html import percent

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
_KEPT = (  # in words, bytes a parameter, colour and hatch
    ("weights", 4, PARTS["parameters"]),
    ("gradients", 4, PARTS["gradients"]),
    ("Adam's two averages", 8, PARTS["optimizer_state"]),
)
_NAMED = 0.08  # of the longest bar: a shorter part has no room for its dtype
_ON_A_HATCH: dict[str, Any] = {
    "boxstyle": "round,pad=0.15",
    "facecolor": "white",
    "edgecolor": "none",
    "alpha": 0.85,
}
_WAYS = (  # a colour, a linestyle and a marker for each line, in the order in which they are given
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
    told = "; ".join(f"{name} {_kilobytes(total)}" for name, total in totals.items())
    alt = (
        f"Bars of the bytes that each of {ranks:,} ranks sends in a training step, by dtype and "
        f"phase: {told}."
    )
    figure, axis = new_figure(7.6, 1.2 + 0.3 * len(steps), alt=alt, dots=FEWER_DOTS)
    parts: set[tuple[str, Phase]] = set()
    for row, (name, found) in enumerate(steps.items()):
        left = 0.0
        for phase, (_, hatch) in _PHASES.items():
            for fmt in (*_FORMATS.values(), _OTHER):
                part = [
                    call
                    for call in found
                    if (call.phase, _FORMATS.get(call.dtype, _OTHER)) == (phase, fmt)
                ]
                sent = sum(call.sent_bytes for call in part)
                if sent:
                    parts.add((fmt, phase))
                    look: dict[str, Any] = {
                        "color": _DTYPES[fmt],
                        "hatch": hatch,
                        "edgecolor": "white",
                        "lw": 0,
                    }
                    axis.barh(row, sent / 1e3, 0.7, left, **look)
                    # the dtype in words: a hatch tells the phase only
                    if sent > _NAMED * max(totals.values()):
                        middle = left + sent / 2e3
                        axis.text(
                            middle,
                            row,
                            fmt,
                            ha="center",
                            va="center",
                            fontsize=7.5,
                            color=INK,
                            bbox=_ON_A_HATCH,
                        )
                    left += sent / 1e3
        axis.annotate(
            _kilobytes(totals[name]),
            (left, row),
            (5, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    axis.set_yticks(range(len(steps)), list(steps))
    axis.tick_params(axis="y", length=0)
    axis.invert_yaxis()
    axis.set_xlim(0, 1.12 * max(totals.values()) / 1e3)
    axis.set_xlabel("kB sent by each rank, if all collectives are rings", fontsize=8)
    handles = [
        Patch(facecolor=colour, hatch=hatch, edgecolor="white", label=f"{fmt}, {words}")
        for fmt, colour in _DTYPES.items()
        for phase, (words, hatch) in _PHASES.items()
        if (fmt, phase) in parts
    ]
    figure.legend(handles=handles, **_LEGEND | {"ncols": 4, "handlelength": 2})
    title(
        axis,
        "What a training step sends",
        f"counted on a fake group of {ranks:,} ranks; bytes by dtype and phase",
    )
    return figure


def _kilobytes(size: float) -> str:
    return f"{size / 1e3:,.0f} kB"


def reduction_figure(rows: Mapping[str, Sequence[ReductionError]], under: str = "") -> Figure:
    """Draw error, lost and overflowed elements of 16-bit means against the number of ranks, a line
    for each way.

    The error is drawn where nothing overflows: among the finite elements that are left, it means
    little. Colour is the dtype that travels; rings are solid, trees dashed, sums in another dtype
    dotted.

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
    for (name, way), (_, _, marker) in zip(rows.items(), _WAYS, strict=False):
        last, ranks = way[-1], [row.ranks for row in way]
        style = ":" if last.accumulate != last.dtype else {"ring": "-", "tree": "--"}[last.order]
        colour = _DTYPES[_FORMATS[str(last.dtype).removeprefix("torch.")]]
        look: dict[str, Any] = {
            "color": colour,
            "ls": style,
            "marker": marker,
            "lw": 1.5,
            "ms": 4,
            "mfc": "white",
        }
        errors = [math.nan if row.share_overflowed else row.relative_error for row in way]
        axes[0].plot(ranks, errors, label=name, **look)
        if not last.share_overflowed:
            end = f"{100 * last.relative_error:.{1 if last.relative_error > 0.1 else 2}f} %"
            at = (last.ranks, last.relative_error)
            axes[0].annotate(end, at, (6, 0), textcoords="offset points", va="center", fontsize=8)
        axes[1].plot(ranks, [100 * row.share_lost for row in way], **look)
        axes[2].plot(ranks, [100 * row.share_overflowed for row in way], **look)
    axes[0].set_yscale("log")
    axes[0].yaxis.set_major_formatter(lambda value, _: f"{100 * value:g} %")
    for axis in axes:
        axis.set_xscale("log", base=2)
        ticks = (
            [2, 8, 32, 128, 512]
            if most >= 512
            else sorted({row.ranks for way in rows.values() for row in way})
        )
        axis.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        axis.set_xlabel("ranks", fontsize=8)
    axes[0].set_xlim(right=4 * most)  # room for the last values
    for axis in axes[1:]:
        axis.set_ylim(-0.03 * max(1.0, axis.get_ylim()[1]), max(1.0, axis.get_ylim()[1]))
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:g} %")
    title(axes[0], "Relative error", under or "where nothing overflows")
    title(axes[1], "Lost", "became 0")
    title(axes[2], "Overflowed", "became inf or NaN")
    figure.legend(**_LEGEND | {"ncols": 3})
    return figure


def scale_window_figure(rows: Mapping[str, Sequence[ReductionError]]) -> Figure:
    """Draw error, lost and overflowed elements of 16-bit means against the loss scale, a line for
    each way.

    The error is drawn where nothing overflows: among the finite elements that are left, it means
    little.

    rows: name of the way → its measurements, by loss scale (a power of two)
    """
    first = next(iter(rows.values()))[0]
    told = "; ".join(
        f"{name}: "
        + (
            f"nothing is lost or overflows from 2^{fine[0]} to 2^{fine[-1]}"
            if fine
            else "no scale is free of both"
        )
        for name, way in rows.items()
        for fine in [
            [
                round(math.log2(row.scale))
                for row in way
                if not row.share_lost and not row.share_overflowed
            ]
        ]
    )
    alt = (
        f"Relative error, share lost and share overflowed in the mean over {first.ranks:,} "
        f"ranks, by loss scale. {told}."
    )
    figure, (errors, lost, overflowed) = new_figure(
        7.4, 5.0, rows=3, sharex=True, alt=alt, dots=FEWER_DOTS
    )
    for (name, way), (colour, style, marker) in zip(rows.items(), _WAYS, strict=False):
        scales = [row.scale for row in way]
        look: dict[str, Any] = {
            "color": colour,
            "ls": style,
            "marker": marker,
            "lw": 1.5,
            "ms": 4,
            "mfc": "white",
        }
        finite = [math.nan if row.share_overflowed else 100 * row.relative_error for row in way]
        errors.plot(scales, finite, label=name, **look)
        lost.plot(scales, [100 * row.share_lost for row in way], **look)
        overflowed.plot(scales, [100 * row.share_overflowed for row in way], **look)
    errors.set_yscale("log")
    for axis in (errors, lost, overflowed):
        axis.set_xscale("log", base=2)
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:g} %")
    overflowed.set_xlabel("loss scale", fontsize=8)
    title(
        errors, f"Relative error of the mean over {first.ranks:,} ranks", "where nothing overflows"
    )
    title(lost, "Lost", "became 0")
    title(overflowed, "Overflowed", "became inf or NaN")
    figure.legend(**_LEGEND | {"ncols": 3})
    return figure


def ring_figure(rows: Sequence[HalvedBytes], under: str = "") -> Figure:
    """Draw the time of a step against the number of ranks, for 4-byte and 2-byte gradients, a plot
    for each overlap.

    under: the model and the links, for the second line of the title
    """
    overlaps = sorted({row.overlap for row in rows})
    told = "; ".join(
        f"{row.ranks:,} ranks, {_overlap_in_words(row.overlap)}: {seconds_text(row.step_fp32)} and "
        f"{seconds_text(row.step_16_bit)}, {row.speedup:.2f} times as fast"
        for row in rows
    )
    alt = f"Time of a training step by ranks, with 4-byte and with 2-byte gradients. {told}."
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
        title(
            axis,
            _overlap_in_words(overlap).capitalize(),
            under if overlap == overlaps[0] else " " * bool(under),
        )
    axes[0][0].set_ylabel("seconds for a step", fontsize=8)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, **_LEGEND | {"ncols": 2})
    return figure


def _overlap_in_words(overlap: float) -> str:
    return f"{100 * overlap:.0f} % of the computation can overlap" if overlap else "no overlap"


def state_figure(parameters: int, ranks: Sequence[int], room: float = 80e9) -> Figure:
    """Draw what each rank keeps between two steps of Adam in fp32: under DDP, which has all of it,
    and under FSDP2, which has a share.

    parameters: of the model
    ranks:      over how many FSDP2 shards
    room:       the bytes of a GPU, drawn as a line
    """
    shares = {"DDP, any number of ranks": 1.0} | {f"FSDP2, {n:,} ranks": 1 / n for n in ranks}
    told = "; ".join(
        f"{name} {16 * parameters * share / 1e9:.3g} GB" for name, share in shares.items()
    )
    alt = (
        f"Bars of what each rank keeps of {parameters / 1e9:g} billion parameters, with a line at "
        f"{room / 1e9:g} GB: {told}."
    )
    figure, axis = new_figure(7.6, 1.2 + 0.3 * len(shares), alt=alt)
    for row, share in enumerate(shares.values()):
        left = 0.0
        for _, size, (colour, hatch) in _KEPT:
            width = size * parameters * share / 1e9
            axis.barh(row, width, 0.7, left, color=colour, hatch=hatch, edgecolor="white", lw=0)
            left += width
        where = {"xytext": (5, 0), "textcoords": "offset points", "va": "center", "fontsize": 8}
        axis.annotate(f"{left:.3g} GB", (left, row), **where)
    axis.axvline(room / 1e9, color=INK, lw=1, ls="--")
    axis.set_yticks(range(len(shares)), list(shares))
    axis.tick_params(axis="y", length=0)
    axis.invert_yaxis()
    axis.set_xlim(0, 1.15 * max(16 * parameters, room) / 1e9)
    axis.set_xlabel(f"GB; the line is a GPU with {room / 1e9:g} GB", fontsize=8)
    handles = [
        Patch(facecolor=colour, hatch=hatch, edgecolor="white", label=f"{name}, {size} bytes each")
        for name, size, (colour, hatch) in _KEPT
    ]
    figure.legend(handles=handles, **_LEGEND | {"ncols": 3, "handlelength": 2})
    under = f"{parameters / 1e9:g} billion parameters, trained with Adam in fp32 or under autocast"
    title(axis, "What each rank keeps", under)
    return figure
