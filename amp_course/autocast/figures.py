"""The figures of chapter 04. They take data that was computed, and compute nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from amp_course.autocast.records import ModuleRow
from amp_course.kit.colours import COLOURS, FAINT, FORMAT_COLOURS, INK
from amp_course.kit.style import new_figure, title
from amp_course.kit.tensors import short

_OTHER = "#888888"  # the colour of a dtype that the course has none for
_WIDE = 0.9  # of a chip, in columns


def trace_figure(rows: Sequence[ModuleRow]) -> Figure:
    """Draw modules as rows: dtypes going in and coming out as labelled chips,
    bytes of inserted casts as bars.
    """
    told = "; ".join(
        f"{row.path} {_names(row.inputs)} to {_names(row.outputs)}" for row in rows[:8]
    )
    figure, axes = new_figure(
        7.6,
        1.0 + 0.23 * max(1, len(rows)),
        columns=2,
        width_ratios=[2.3, 1],
        sharey=True,
        alt=f"Modules with the dtypes that go in and come out, and the bytes cast on the way in: "
        f"{told or 'none'}.",
    )
    doors, sizes = axes
    for place, row in enumerate(rows):
        depth = row.path.count(".") + (not row.path.startswith("("))
        doors.text(0.15 * depth, place, row.path, fontsize=8, va="center", color=INK)
        _chips(doors, 2.9, place, row.inputs)
        doors.text(4.95, place, "→", fontsize=9, ha="center", va="center", color=INK)
        _chips(doors, 5.2, place, row.outputs)
        sizes.barh(place, row.cast_bytes, height=0.6, color=FAINT)
        if row.casts:
            label = f" {row.cast_bytes:,} in {row.casts}"
            sizes.text(row.cast_bytes, place, label, fontsize=8, va="center", color=INK)
    doors.set_xlim(0, 7.2)
    doors.set_ylim(len(rows) - 0.4, -0.6)
    doors.set_yticks([])
    doors.set_xticks([])
    for side in ("left", "bottom"):
        doors.spines[side].set_visible(False)
    most = max((row.cast_bytes for row in rows), default=0) or 1
    sizes.set_xlim(0, most * 2.1)
    sizes.set_xticks([])
    sizes.spines["bottom"].set_visible(False)
    title(doors, "Module: dtype in → out")
    title(sizes, "Bytes cast, in so many casts")
    return figure


def _names(dtypes: Sequence[torch.dtype]) -> str:
    return " and ".join(map(short, dtypes)) or "nothing"


def _chips(axis: Any, x: float, y: float, dtypes: Sequence[torch.dtype]) -> None:
    for number, dtype in enumerate(dtypes[:2]):
        name = short(dtype)
        left = x + number * (_WIDE + 0.08)
        colour = FORMAT_COLOURS.get(name, _OTHER)
        axis.add_patch(
            Rectangle(
                (left, y - 0.36), _WIDE, 0.72, facecolor="white", edgecolor=colour, linewidth=1
            )
        )
        axis.add_patch(Rectangle((left, y - 0.36), 0.14, 0.72, facecolor=colour, linewidth=0))
        axis.text(left + 0.5, y, name, fontsize=8, ha="center", va="center", color=INK)
    if not dtypes:
        axis.text(x + 0.45, y, "–", fontsize=8, ha="center", va="center", color=FAINT)


def frozen_figure(losses: Mapping[str, Sequence[float]]) -> Figure:
    """Draw the loss over steps, one line a name; the first is the right one: {"a region a step":
    […], …}.
    """
    told = ", ".join(
        f"{name} from {values[0]:.3g} to {values[-1]:.3g}" for name, values in losses.items()
    )
    figure, axis = new_figure(7.2, 2.8, alt=f"The loss over the steps of each training: {told}.")
    looks = ((COLOURS["amp_bf16"], "-"), (COLOURS["amp_fp16"], "--"), (FAINT, ":"))
    for (name, values), (colour, style) in zip(losses.items(), looks, strict=False):
        axis.plot(range(len(values)), values, ls=style, color=colour, lw=1.8, label=name)
    axis.set_ylim(bottom=0)
    axis.set_xlabel("step", fontsize=8)
    axis.legend(fontsize=8, frameon=False)
    title(axis, "Loss", "same model, same batches, same optimizer")
    return figure
