"""The figures of chapter 06. They draw data, and compute nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from amp_course.kit.colours import COLOURS, FAINT, HATCHES, INK, PARTS
from amp_course.kit.measure import seconds_text
from amp_course.kit.memory import bytes_text
from amp_course.kit.style import merged_row, new_figure, title
from amp_course.loop.published import PUBLISHED

if TYPE_CHECKING:
    from amp_course.kit.memory import StepMemory
    from amp_course.loop.report import ReportCard, Row

_ON_WHITE = {"facecolor": "white", "edgecolor": "none", "pad": 0.4}  # readable on a line
_SMALL: dict[str, Any] = {"fontsize": 8, "va": "center"}


def fooled_figure(ways: Mapping[str, tuple[float, float]]) -> Figure:
    """Draw how far off each way of timing is: its name → its answer and the honest one, in ms."""
    labels = {
        name: f"{wrong:.3g} ms instead of {honest:.3g} ms" for name, (wrong, honest) in ways.items()
    }
    measured = "; ".join(f"{name}: {label}" for name, label in labels.items())
    alt = f"What each wrong way of timing measures. {measured}."
    figure, axis = new_figure(7.2, 1.1 + 0.4 * len(ways), alt=alt)
    look = {"color": COLOURS["amp_fp16"], "hatch": "//", "edgecolor": "white", "height": 0.65}
    names = list(ways)[::-1]
    ratios = [ways[name][0] / ways[name][1] for name in names]
    for row, (name, ratio) in enumerate(zip(names, ratios, strict=True)):
        axis.barh(row, ratio - 1, left=1, **look)
        axis.text(max(ratio, 1), row, f" {labels[name]} ", color=INK, **_SMALL)
    axis.axvline(1, color=INK, lw=0.8, ls=":")
    axis.set_yticks(range(len(names)), names, fontsize=8)
    axis.set_xscale("log")
    axis.set_xlim(right=max(10, *ratios) * 30)
    under = "what each measures, over the honest time; log scale"
    title(axis, "Three ways to fool yourself", under)
    return figure


def memory_figure(memories: Mapping[str, StepMemory]) -> Figure:
    """Draw the parts of a step's memory as a stacked bar for each name, with a line at the peak."""
    parts = "; ".join(
        f"{name}: a peak of {bytes_text(memory.peak)}, {bytes_text(memory.activations)} of it "
        f"activations"
        for name, memory in memories.items()
    )
    alt = f"Where the memory of one training step goes. {parts}."
    figure, axis = new_figure(7.2, 1.2 + 0.5 * len(memories), alt=alt)
    names = list(memories)[::-1]
    for row, name in enumerate(names):
        memory, left = memories[name], 0.0
        for part, (colour, hatch) in PARTS.items():
            size, label = getattr(memory, part) / 2**20, part.replace("_", " ")
            look = {"color": colour, "hatch": hatch, "edgecolor": "white", "height": 0.6}
            axis.barh(row, size, left=left, label=label if row == 0 else None, **look)
            left += size
        peak = memory.peak / 2**20
        ends = [row - 0.38, row + 0.38]
        axis.plot([peak] * 2, ends, color=INK, lw=2, label="peak" if row == 0 else None)
        axis.text(max(left, peak), row, f"  peak {bytes_text(memory.peak)}", **_SMALL)
    axis.set_yticks(range(len(names)), names, fontsize=8)
    axis.margins(x=0.22)
    axis.set_xlim(left=0)
    figure.legend(fontsize=8, frameon=False, ncols=6, loc="outside lower center")
    title(axis, "What one step keeps in memory", "MiB; counted tensor by tensor")
    return figure


def scale_figure(scales: Sequence[float], skipped: Sequence[int]) -> Figure:
    """Draw the loss scale of each step, with the skipped steps marked."""
    alt = (
        f"The loss scale over {len(scales)} training steps, from {scales[0]:,.0f} to "
        f"{scales[-1]:,.0f}; {len(skipped)} skipped steps are marked."
    )
    figure, axis = new_figure(7.2, 2.4, alt=alt)
    axis.step(range(len(scales)), scales, where="mid", color=COLOURS["amp_fp16"], lw=1.5)
    axis.plot(skipped, [scales[n] for n in skipped], "X", color=INK, ms=8, label="step skipped")
    axis.set_yscale("log", base=2)
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.set_xlabel("step", fontsize=8)
    if skipped:
        axis.legend(fontsize=8, frameon=False)
    title(axis, "Loss scale", "what each step was scaled by")
    return figure


def report_card_figure(card: ReportCard) -> Figure:
    """Draw each workload's speed and peak memory relative to fp32, and published speed-ups."""
    names = card.workloads()
    recipes = list({row.recipe.name: row.recipe for row in card.rows}.values())
    tall = 0.24 * (len(recipes) + 1) * len(names)
    alt = (
        f"Report card: {len(names)} trainings under {len(recipes)} recipes, speed and peak memory "
        "as bars, compared with fp32, with the numbers of the table above; below them, speed-ups "
        "that others published."
    )
    figure, axes = new_figure(8, 3.9 + tall, columns=2, rows=2, height_ratios=[tall, 1.8], alt=alt)
    (speed, memory), published = axes[0], merged_row(axes[1])

    def gain(row: Row) -> tuple[float, str]:
        seconds, times = seconds_text(row.timing.median), card.speedup(row)
        if card.busy(row.workload):
            return 0.0, f"too busy to tell  ({seconds})"
        return times, f"{times:.2f} ×  ({seconds})"

    def peak(row: Row) -> tuple[float, str]:
        return row.peak_bytes / card.of(row.workload)[0].peak_bytes, bytes_text(row.peak_bytes)

    for axis, measure, head in ((speed, gain, "Speed-up"), (memory, peak, "Peak memory")):
        _draw_rows(axis, card, len(recipes), measure)
        title(axis, head, "fp32 = 1")
    memory.set_yticklabels([])
    pairs = PUBLISHED[::-1]
    look = {"color": "#d9d9d9", "edgecolor": FAINT, "height": 0.7, "lw": 0.6}
    for place, pair in enumerate(pairs):
        published.barh(place, pair.speedup, **look)
        published.text(pair.speedup, place, f" {pair.speedup:.2f} ×", **_SMALL)
    labels = [f"{pair.what}\n{pair.hardware}" for pair in pairs]
    published.set_yticks(range(len(pairs)), labels, fontsize=7.5)
    published.margins(x=0.1)
    published.set_xlim(left=0)
    under = "speed-up; other hardware, and a baseline of their own"
    title(published, "Published elsewhere", under)
    handles = [Patch(**_look(recipe.name), label=recipe.label) for recipe in recipes]
    legend: dict[str, Any] = {"fontsize": 8, "frameon": False, "loc": "outside upper right"}
    figure.legend(handles=handles, ncols=min(4, len(recipes)), **legend)
    machine = card.machine
    head = f"Report card: {machine.device_name}, torch {machine.torch_version}, {card.day}"
    figure.suptitle(head, fontsize=9, x=0.01, ha="left", color=FAINT)
    return figure


def save_report_card(card: ReportCard, folder: Path | str) -> tuple[Path, Path]:
    """Write report_card.json and report_card.png into a folder; return their paths."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    data, picture = folder / "report_card.json", folder / "report_card.png"
    data.write_text(json.dumps(card.to_dict(), indent=1) + "\n", encoding="utf-8")
    report_card_figure(card).savefig(picture)
    return data, picture


def _draw_rows(
    axis: Any, card: ReportCard, group: int, measure: Callable[[Row], tuple[float, str]]
) -> None:
    """Draw a bar and a text for each row, the rows of a workload together."""
    ticks, labels = [], []
    for place, name in enumerate(card.workloads()):
        rows = card.of(name)
        for at, row in enumerate(rows):
            y, (value, text) = -(place * (group + 1) + at), measure(row)
            axis.barh(y, value, height=0.85, **_look(row.recipe.name))
            axis.text(value, y, f" {text}", bbox=_ON_WHITE, zorder=3, **_SMALL)
        ticks.append(-(place * (group + 1) + (len(rows) - 1) / 2))
        labels.append(rows[0].title.replace(", ", "\n", 1))
    axis.set_yticks(ticks, labels, fontsize=7.5)
    axis.margins(x=0.35)
    axis.set_xlim(left=0)
    axis.axvline(1, color=INK, lw=0.8, ls=":", zorder=0)
    axis.set_xlim(0, max(1.2, axis.get_xlim()[1]))


def _look(recipe: str) -> dict[str, Any]:
    return {"facecolor": COLOURS[recipe], "hatch": HATCHES[recipe], "edgecolor": "white"}
