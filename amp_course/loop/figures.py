"""The figures of chapter 06. They take data that was measured, and compute nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure

from amp_course.kit.colours import COLOURS, FAINT, HATCHES, INK, PARTS
from amp_course.kit.measure import seconds_text
from amp_course.kit.memory import bytes_text
from amp_course.kit.style import merged_row, new_figure, title
from amp_course.loop.published import PUBLISHED

if TYPE_CHECKING:
    from amp_course.kit.memory import StepMemory
    from amp_course.loop.report import ReportCard


_ON_WHITE = {
    "facecolor": "white",
    "edgecolor": "none",
    "pad": 0.4,
}  # keeps a number readable on a line


def fooled_figure(ways: Mapping[str, tuple[float, float]]) -> Figure:
    """Draw how far off each way of timing is: its name, and
    (its answer, the honest one) in milliseconds.
    """
    said = "; ".join(
        f"{name}: {wrong:.3g} ms instead of {honest:.3g} ms"
        for name, (wrong, honest) in ways.items()
    )
    figure, axis = new_figure(
        7.2, 1.1 + 0.4 * len(ways), alt=f"What each wrong way of timing measures. {said}."
    )
    names = list(ways)[::-1]
    for row, name in enumerate(names):
        wrong, honest = ways[name]
        ratio = wrong / honest
        axis.barh(
            row,
            ratio - 1,
            left=1,
            color=COLOURS["amp_fp16"],
            hatch="//",
            edgecolor="white",
            height=0.65,
        )
        text = f" {wrong:.3g} ms instead of {honest:.3g} ms "
        axis.text(max(ratio, 1), row, text, va="center", fontsize=8, color=INK)
    axis.axvline(1, color=INK, lw=0.8, ls=":")
    axis.set_yticks(range(len(names)), names, fontsize=8)
    axis.set_xscale("log")
    axis.set_xlim(right=max(10, *(wrong / honest for wrong, honest in ways.values())) * 30)
    title(
        axis, "Three ways to fool yourself", "what each measures, over the honest time; log scale"
    )
    return figure


def memory_figure(memories: Mapping[str, StepMemory]) -> Figure:
    """Draw the parts of a step's memory, stacked, one bar for each name;
    the peak is the line across.
    """
    said = "; ".join(
        f"{name}: a peak of {bytes_text(memory.peak)}, {bytes_text(memory.activations)} of it "
        f"activations"
        for name, memory in memories.items()
    )
    figure, axis = new_figure(
        7.2, 1.2 + 0.5 * len(memories), alt=f"Where the memory of one training step goes. {said}."
    )
    names = list(memories)[::-1]
    for row, name in enumerate(names):
        memory, left = memories[name], 0.0
        for part, (colour, hatch) in PARTS.items():
            size = getattr(memory, part) / 2**20
            axis.barh(
                row,
                size,
                left=left,
                color=colour,
                hatch=hatch,
                edgecolor="white",
                height=0.6,
                label=part.replace("_", " ") if row == 0 else None,
            )
            left += size
        axis.plot(
            [memory.peak / 2**20] * 2,
            [row - 0.38, row + 0.38],
            color=INK,
            lw=2,
            label="peak" if row == 0 else None,
        )
        axis.text(
            max(left, memory.peak / 2**20),
            row,
            f"  peak {bytes_text(memory.peak)}",
            va="center",
            fontsize=8,
        )
    axis.set_yticks(range(len(names)), names, fontsize=8)
    axis.margins(x=0.22)
    axis.set_xlim(left=0)
    figure.legend(fontsize=8, frameon=False, ncols=6, loc="outside lower center")
    title(axis, "What one step keeps in memory", "MiB; counted tensor by tensor")
    return figure


def scale_figure(scales: Sequence[float], skipped: Sequence[int]) -> Figure:
    """Draw the loss scale that each step used, with the skipped steps marked."""
    path = f"from {scales[0]:,.0f} to {scales[-1]:,.0f}" if scales else "of no step"
    figure, axis = new_figure(
        7.2,
        2.4,
        alt=f"The loss scale over {len(scales)} training steps, {path}; {len(skipped)} skipped "
        f"steps are marked.",
    )
    axis.step(range(len(scales)), scales, where="mid", color=COLOURS["amp_fp16"], lw=1.5)
    axis.plot(
        skipped, [scales[n] for n in skipped], "X", color=INK, ms=8, label="step skipped", ls="none"
    )
    axis.set_yscale("log", base=2)
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.set_xlabel("step", fontsize=8)
    if skipped:
        axis.legend(fontsize=8, frameon=False)
    title(axis, "Loss scale", "what each step was scaled by")
    return figure


def report_card_figure(card: ReportCard) -> Figure:
    """Draw the report card: for each workload time and peak memory relative to fp32;
    published speed-ups next to them.
    """
    names = card.workloads()
    recipes = list({row.recipe.name: row.recipe for row in card.rows}.values())
    tall = 0.24 * (len(recipes) + 1) * len(names)
    alt = (
        f"Report card: {len(names)} trainings under {len(recipes)} recipes, speed and peak memory "
        f"as bars, compared with "
        "fp32, with the numbers of the table above; below them, speed-ups that others published."
    )
    figure, axes = new_figure(8, 3.9 + tall, columns=2, rows=2, height_ratios=[tall, 1.8], alt=alt)
    axes, published_axis = axes[0], merged_row(axes[1])
    for axis, value, text, head in (
        (
            axes[0],
            lambda row: 0.0 if card.busy(row.workload) else card.speedup(row),
            lambda row: (
                ("too busy to tell" if card.busy(row.workload) else f"{card.speedup(row):.2f} ×")
                + f"  ({seconds_text(row.timing.median)})"
            ),
            "Speed-up",
        ),
        (
            axes[1],
            lambda row: row.peak_bytes / card.of(row.workload)[0].peak_bytes,
            lambda row: bytes_text(row.peak_bytes),
            "Peak memory",
        ),
    ):
        _grouped(axis, card, names, len(recipes), value, text)
        axis.axvline(1, color=INK, lw=0.8, ls=":", zorder=0)
        axis.set_xlim(0, max(1.2, axis.get_xlim()[1]))
        title(axis, head, "fp32 = 1")
    axes[1].set_yticklabels([])
    for row, published in enumerate(PUBLISHED[::-1]):
        published_axis.barh(
            row, published.speedup, color="#d9d9d9", edgecolor=FAINT, height=0.7, lw=0.6
        )
        published_axis.text(
            published.speedup, row, f" {published.speedup:.2f} ×", fontsize=8, va="center"
        )
    labels = [f"{published.what}\n{published.hardware}" for published in PUBLISHED[::-1]]
    published_axis.set_yticks(range(len(PUBLISHED)), labels, fontsize=7.5)
    published_axis.margins(x=0.1)
    published_axis.set_xlim(left=0)
    title(
        published_axis,
        "Published elsewhere",
        "speed-up; other hardware, and a baseline of their own",
    )
    handles = [_patch(recipe.name, recipe.label) for recipe in recipes]
    figure.legend(
        handles=handles,
        fontsize=8,
        frameon=False,
        ncols=min(4, len(recipes)),
        loc="outside upper right",
    )
    figure.suptitle(
        f"Report card: {card.machine.device_name}, torch {card.machine.torch_version}, {card.day}",
        fontsize=9,
        x=0.01,
        ha="left",
        color=FAINT,
    )
    return figure


def save_report_card(card: ReportCard, folder: Path | str) -> tuple[Path, Path]:
    """Write report_card.json and report_card.png into a folder, made if need be;
    return their paths.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    data, picture = folder / "report_card.json", folder / "report_card.png"
    data.write_text(json.dumps(card.to_dict(), indent=1) + "\n", encoding="utf-8")
    report_card_figure(card).savefig(picture)
    return data, picture


def _grouped(
    axis: Any, card: ReportCard, names: Sequence[str], group: int, value: Any, text: Any
) -> None:
    ticks, labels = [], []
    for place, name in enumerate(names):
        rows = card.of(name)
        for at, row in enumerate(rows):
            y = -(place * (group + 1) + at)
            axis.barh(
                y,
                value(row),
                color=COLOURS[row.recipe.name],
                hatch=HATCHES[row.recipe.name],
                edgecolor="white",
                height=0.85,
            )
            axis.text(
                value(row), y, f" {text(row)}", va="center", fontsize=8, bbox=_ON_WHITE, zorder=3
            )
        ticks.append(-(place * (group + 1) + (len(rows) - 1) / 2))
        labels.append(rows[0].title.replace(", ", "\n", 1))
    axis.set_yticks(ticks, labels, fontsize=7.5)
    axis.margins(x=0.35)
    axis.set_xlim(left=0)


def _patch(recipe: str, label: str) -> Any:
    from matplotlib.patches import Patch

    return Patch(facecolor=COLOURS[recipe], hatch=HATCHES[recipe], edgecolor="white", label=label)
