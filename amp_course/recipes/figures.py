"""The figures of chapter 08. They draw data, and compute nothing."""

from __future__ import annotations

import math
import statistics
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from amp_course.bits.formats import FP16
from amp_course.bits.numerals import raised
from amp_course.kit.colours import COLOURS, HATCHES, INK, KEPT
from amp_course.kit.memory import bytes_text
from amp_course.kit.style import FEWER_DOTS, new_figure, title
from amp_course.recipes.guide import HARDWARE, MODELS, SYMPTOMS, Leaf
from amp_course.recipes.measuring import RecipeTable
from amp_course.recipes.survival import IMAGENET, SETTINGS, FirstStep, SurvivalMap, find_setting
from amp_course.recipes.training import BaseRecipe

_SMALL: dict[str, Any] = {"fontsize": 8, "va": "center"}
_ON_BAR = {"facecolor": "white", "edgecolor": "none", "pad": 0.5, "alpha": 0.9}
_FEWEST_DOTS = 110  # those that the page shows: two figures are a third of the notebook's bytes
_LEGEND: dict[str, Any] = {"fontsize": 8, "frameon": False, "loc": "outside lower center"}


def recipe_table_figure(table: RecipeTable) -> Figure:
    """Draw bytes per parameter by kind, with their formats, next to the activations."""
    values = "; ".join(
        f"{row.label} {row.bytes_per_parameter:.1f} and {bytes_text(row.activation_bytes)}"
        for row in table.rows
    )
    alt = f"Bars for each recipe: bytes per parameter, and bytes of activations. {values}."
    rows = table.rows[::-1]
    figure, (kept, activations) = new_figure(
        8, 1.3 + 0.36 * len(rows), columns=2, width_ratios=[2, 1], dots=FEWER_DOTS, alt=alt
    )
    looks: dict[str, dict[str, Any]] = {
        kind: {"facecolor": colour, "hatch": hatch, "edgecolor": "white"}
        for kind, (colour, hatch) in KEPT.items()
    }
    for place, row in enumerate(rows):
        left = 0.0
        for kind, look in looks.items():
            width = row.bytes_of_each(kind)
            kept.barh(place, width, left=left, height=0.7, **look)
            if sizes := getattr(row, kind):  # the format of the largest part
                name = next(iter(sizes))
                kept.text(left + width / 2, place, name, ha="center", bbox=_ON_BAR, **_SMALL)
            left += width
        kept.text(left, place, f" {left:.1f}", color=INK, **_SMALL)
        size, look = row.activation_bytes, {"edgecolor": "white", "height": 0.7}
        colour, hatch = COLOURS[row.name], HATCHES[row.name]
        activations.barh(place, size, color=colour, hatch=hatch, **look)
        activations.text(size, place, f" {bytes_text(size)}", **_SMALL)
    kept.set_yticks(range(len(rows)), [row.label for row in rows], fontsize=8)
    kept.set_xlim(0, 1.12 * max(row.bytes_per_parameter for row in rows))
    activations.set_yticks([])
    activations.set_xlim(0, 1.5 * max(row.activation_bytes for row in rows))
    activations.set_xticks([])
    under = "when backward has ended; the format of most of it in the bar"
    title(kept, "Bytes for every parameter", under)
    title(activations, "Activations", "what backward needs, one batch")
    handles = [Patch(label=kind.replace("_", " "), **look) for kind, look in looks.items()]
    figure.legend(handles=handles, ncols=4, **_LEGEND)
    return figure


def distance_figure(distances: Mapping[BaseRecipe, Sequence[float]], limit: float) -> Figure:
    """Draw each recipe's distance from the weights of an fp32 twin by step, and a limit."""
    ends = "; ".join(f"{recipe.label} {values[-1]:.1e}" for recipe, values in distances.items())
    alt = (
        f"Relative distance of each recipe's weights from an fp32 twin, step by step. At the "
        f"end: {ends}."
    )
    figure, axis = new_figure(7.2, 2.9, alt=alt)
    for number, (recipe, values) in enumerate(distances.items()):
        steps, style = range(1, len(values) + 1), ("-", "--", "-.", ":")[number % 4]
        axis.plot(steps, values, style, color=COLOURS[recipe.name], lw=1.6, label=recipe.label)
    axis.axhline(limit, color=INK, lw=0.8, ls=":")
    end = max(len(values) for values in distances.values())
    power = f"2{raised(round(math.log2(limit)))}"
    axis.text(end, limit, power, fontsize=8, ha="right", va="bottom", color=INK)
    axis.set_yscale("log", base=2)
    axis.set_xlabel("step", fontsize=8)
    axis.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    title(axis, "How far from fp32", "all weights: norm of the difference over norm of fp32's")
    return figure


_ROWS = {  # of the survival map: recipe → its label
    "o0": "O0 (fp32)",
    "o1": "O1 (AMP fp16)",
    "amp_bf16": "AMP bf16",
    "o2": "O2",
    "o3": "O3",
    "half_bn32": "half + BN fp32",
    "pure_bf16": "pure bf16",
    "pure_bf16_sr": "pure bf16 + SR",
}
_DIVERGED: dict[str, Any] = {
    "facecolor": "#FBE3D5",
    "edgecolor": COLOURS["amp_fp16"],
    "linewidth": 1.2,
}


def survival_figure(found: SurvivalMap) -> Figure:
    """Draw each setting's accuracies and diverged runs, next to the published ImageNet runs."""
    figure, axes = new_figure(8, 6.4, 2, 2, dots=_FEWEST_DOTS, alt=_survival_alt(found))
    rows = [label for recipe, label in _ROWS.items() if recipe in found.recipes()]
    places = [axes[0][0], axes[0][1], axes[1][0]]
    for axis, setting in zip(places, ("raw_sum", "raw", "resnet"), strict=True):
        sizes = found.sizes(setting)
        for recipe in found.recipes():
            for column, size in enumerate(sizes):
                runs = found.cell(setting, recipe, size)
                accuracies = [run.accuracy for run in runs if run.accuracy is not None]
                diverged, median = len(runs) - len(accuracies), statistics.median(accuracies or [0])
                text = f"✗ {diverged}/{len(runs)}" if diverged else f"{median:.0%}"
                share = None if diverged else median
                _cell(axis, column, rows.index(_ROWS[recipe]), text, share)
        _grid(axis, rows, sizes)
        seeds = len(found.cell(setting, found.recipes()[0], sizes[0]))
        under = f"median accuracy; ✗: how many of {seeds} seeds died"
        title(axis, find_setting(setting).title, under)
    _imagenet(axes[1][1], rows)
    return figure


def _survival_alt(found: SurvivalMap) -> str:
    parts = []
    for setting in SETTINGS:
        counts = {
            recipe: sum(found.deaths(setting.name, recipe).values()) for recipe in found.recipes()
        }
        words = [f"{_ROWS[recipe]} {count}" for recipe, count in counts.items() if count]
        parts.append(f"{setting.title}: {', '.join(words) or 'none'}")
    return (
        "Survival by recipe and batch size, with published ImageNet runs. Runs that died: "
        f"{'; '.join(parts)}."
    )


def _imagenet(axis: Axes, rows: list[str]) -> None:
    sizes = sorted({size for _, size in IMAGENET})
    for (recipe, size), percent in IMAGENET.items():
        text = "NaN" if percent is None else f"{percent:.1f}%"
        share = None if percent is None else percent / 100
        _cell(axis, sizes.index(size), rows.index(_ROWS[recipe]), text, share)
    _grid(axis, rows, sizes)
    title(axis, "Published: ResNet-50, ImageNet", "top-1 accuracy; 8 × V100, not measured here")


def _cell(axis: Axes, column: int, row: int, text: str, share: float | None) -> None:
    """Draw a cell: the larger the share of right answers, the bluer; None: a run diverged."""
    look = _DIVERGED
    if share is not None:
        look = {"facecolor": colormaps["Blues"](0.62 * share), "linewidth": 0}
    axis.add_patch(Rectangle((column - 0.47, row - 0.44), 0.94, 0.88, **look))
    axis.text(column, row, text, ha="center", color=INK, **_SMALL)


def _grid(axis: Axes, rows: list[str], sizes: Sequence[int]) -> None:
    axis.set_xlim(-0.5, len(sizes) - 0.5)
    axis.set_ylim(len(rows) - 0.5, -0.5)
    axis.set_xticks(range(len(sizes)), [str(size) for size in sizes], fontsize=8)
    left = axis in axis.figure.axes[::2]  # the maps on the right have the same rows
    axis.set_yticks(range(len(rows)), rows if left else [""] * len(rows), fontsize=8)
    axis.set_xlabel("batch size", fontsize=8)
    axis.tick_params(length=0)


def first_step_figure(steps: Sequence[FirstStep]) -> Figure:
    """Draw what fp16 would have to represent at the first step, by batch size."""
    by_setting = {
        setting: [step for step in steps if step.setting == setting.name] for setting in SETTINGS
    }
    sums = "; ".join(
        f"{setting.title} {max(step.loss_sum for step in of):,.0f}"
        for setting, of in by_setting.items()
    )
    alt = (
        f"Sum of losses and largest gradient of the first step by batch size. Largest sums: {sums}."
    )
    figure, axes = new_figure(8, 2.9, columns=2, sharey=True, dots=FEWER_DOTS, alt=alt)
    looks = {"resnet": ("#0072B2", "o"), "raw": ("#009E73", "s"), "raw_sum": ("#D55E00", "^")}
    heads = {"loss_sum": "Sum of the batch's losses", "largest_gradient": "Largest gradient"}
    for axis, (field, head) in zip(axes, heads.items(), strict=True):
        for setting, of in by_setting.items():
            colour, marker = looks[setting.name]
            x, y = [step.batch_size for step in of], [getattr(step, field) for step in of]
            axis.plot(x, y, marker, color=colour, ms=5, mfc="none", label=setting.title)
        axis.axhline(FP16.max, color=INK, lw=1.2)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        sizes = sorted({step.batch_size for step in steps})
        axis.set_xticks(sizes, [str(size) for size in sizes], fontsize=8)
        axis.set_xlabel("batch size", fontsize=8)
        title(axis, head, "of the first step, computed in fp32; one mark a seed")
    axes[0].text(sizes[0], FP16.max * 1.5, f"fp16 ends at {FP16.max:,.0f}", fontsize=8, color=INK)
    figure.legend(*axes[1].get_legend_handles_labels(), ncols=3, **_LEGEND)
    return figure


def guide_figure(leaves: Sequence[Leaf]) -> Figure:
    """Draw the decision guide: a branch for each hardware with a line for each leaf, in order."""
    last_of = {leaf.hardware: leaf.build().label for leaf in leaves}  # if nothing else fits
    usual = "; ".join(f"{label}: {last_of[hardware]}" for hardware, label in HARDWARE.items())
    alt = (
        f"A guide from hardware, model and symptom to a recipe, {len(leaves)} lines. If nothing "
        f"special is the matter: {usual}."
    )
    high = 0.75 + 0.34 * (len(leaves) + 0.35 * len(HARDWARE))
    figure, axis = new_figure(8, high, dots=_FEWEST_DOTS, alt=alt)
    place, last = 0.0, 0.0
    for hardware, label in HARDWARE.items():
        mine = [leaf for leaf in leaves if leaf.hardware == hardware]
        middle = place + (len(mine) - 1) / 2
        look = {"fontsize": 9, "fontweight": "bold", "va": "center", "color": INK}
        axis.text(0.02, middle, textwrap.fill(label, 15), **look)
        for row, leaf in enumerate(mine):
            _draw_leaf(axis, leaf, middle, place + row)
        last = place + len(mine) - 0.5
        place += len(mine) + 0.35
        axis.axhline(last + 0.17, color="#cccccc", linewidth=0.8)
    heads = {0.02: "hardware", 1.72: "and if", 3.62: "recipe", 4.85: "do", 7.18: "shown in"}
    for left, head in heads.items():
        axis.text(left, -0.85, head, color="#555555", **_SMALL)
    axis.set_xlim(0, 8)
    axis.set_ylim(last + 0.3, -1.1)
    axis.axis("off")
    title(axis, "Which recipe? In each block, the first line that fits")
    return figure


def _draw_leaf(axis: Axes, leaf: Leaf, middle: float, row: float) -> None:
    """Draw a line of the guide, joined to its hardware at the height `middle`."""
    axis.plot([1.35, 1.5, 1.5, 1.68], [middle, middle, row, row], color="#999999", linewidth=1)
    conditions = [MODELS[leaf.model]] if leaf.model != "any" else []
    conditions += [SYMPTOMS[leaf.symptom]] if leaf.symptom != "any" else []
    otherwise = "anything else" if leaf.hardware != "cpu" else "always"
    axis.text(1.72, row, ", ".join(conditions) or otherwise, color=INK, **_SMALL)
    colour, hatch = COLOURS[leaf.recipe], HATCHES[leaf.recipe]
    axis.add_patch(
        Rectangle((3.62, row - 0.36), 1.13, 0.72, facecolor=colour, edgecolor="white", hatch=hatch)
    )
    label = leaf.build().label
    axis.text(4.185, row, label, ha="center", color=INK, bbox=_ON_BAR, **_SMALL)
    axis.text(4.85, row, leaf.advice, color=INK, **_SMALL)
    axis.text(7.18, row, leaf.chapter, color=INK, **_SMALL)
