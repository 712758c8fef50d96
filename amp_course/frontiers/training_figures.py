"""The figures of trainings below 16 bits: losses step by step, and scores seed by seed."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from amp_course.frontiers.experiments import Run, TrainingTable
from amp_course.frontiers.experiments.gradient_errors import GradientError
from amp_course.frontiers.experiments.table import SCORES
from amp_course.kit.colours import FAINT, FORMAT_COLOURS, INK
from amp_course.kit.style import FEWER_DOTS, new_figure, title

_COLOURS = {  # the first word of a variant → its colour
    "fp32": FORMAT_COLOURS["fp32"],
    "bf16": FORMAT_COLOURS["bf16"],
    "fp8": FORMAT_COLOURS["fp8 E5M2"],
    "MXFP8": FORMAT_COLOURS["fp8 E4M3"],
    "MXFP4": FORMAT_COLOURS["fp4 E2M1"],
    "NVFP4": FORMAT_COLOURS["fp6 E2M3"],
    "few bits": FORMAT_COLOURS["fp6 E3M2"],
    "AdamW": FORMAT_COLOURS["fp32"],
}
_LINES = ("-", "--", "-.", ":")
_SMOOTH = 10  # steps averaged in a point of a curve


def loss_figure(runs: Sequence[Run]) -> Figure:
    """Draw the loss of each run, the mean of 10 steps at a time."""
    ends = "; ".join(f"{run.variant} {run.last_loss:.2f}" for run in runs)
    figure, axis = new_figure(8, 3.4, alt=f"Training loss, step by step. At the end: {ends}.")
    for number, run in enumerate(runs):
        starts = range(0, len(run.losses), _SMOOTH)
        steps = [min(start + _SMOOTH, len(run.losses)) for start in starts]
        means = [fmean(run.losses[start : start + _SMOOTH]) for start in starts]
        style = {"color": _colour(run.variant), "lw": 1.6, "ls": _LINES[number % len(_LINES)]}
        axis.plot(steps, means, label=f"{run.variant}: {run.last_loss:.2f}", **style)
    axis.set_xlabel("step", fontsize=8)
    axis.legend(
        fontsize=8, frameon=False, title="the last 20 steps", title_fontsize=8, alignment="left"
    )
    title(axis, "Training loss", "mean of 10 steps")
    return figure


def score_figure(table: TrainingTable) -> Figure:
    """Draw each variant's scores, a dot for each seed and a line at their mean; a band spans the
    seeds of the first variant, with which the others are compared.

    GPT: less is better; ResNet: more is.
    """
    groups = list(table.groups().items())
    workload = table.runs[0].workload
    factor = 1.0 if workload == "gpt" else 100.0
    several_rates = len({rate for (_, rate), _ in groups}) > 1
    names = [
        f"{variant}, rate {rate:g}" if several_rates else variant for (variant, rate), _ in groups
    ]
    scores = [[factor * run.score for run in runs] for _, runs in groups]
    rows = list(zip(names, scores, strict=True))
    means = "; ".join(f"{name} {fmean(values):.3g}" for name, values in rows)
    better = "less is better" if workload == "gpt" else "percent, more is better"
    low, high = min(scores[0]), max(scores[0])
    band = f"A band from {low:.3g} to {high:.3g} spans the seeds of {names[0]}."
    alt = f"{SCORES[workload].capitalize()}, mean over seeds: {means}. {band}"
    figure, axis = new_figure(8, 0.9 + 0.26 * len(groups), alt=alt, dots=FEWER_DOTS)
    axis.axvspan(low, high, color=FORMAT_COLOURS["fp32"], alpha=0.12, lw=0)
    for place, (name, values) in enumerate(rows):
        axis.plot(values, [-place] * len(values), "o", color=_colour(name), ms=4, alpha=0.8)
        axis.plot([fmean(values)] * 2, [-place - 0.3, -place + 0.3], color=INK, lw=1.4)
    _label_rows(axis, names)
    seeds = max(map(len, scores))
    if seeds > 1:
        better += f"; dots: {seeds} seeds, line: their mean, band: the seeds of “{names[0]}”"
    title(axis, SCORES[workload].capitalize(), better)
    return figure


def gradient_error_figure(errors: Sequence[GradientError]) -> Figure:
    """Draw how far each variant's gradient is from fp32's: a ring for one draw, a dot for the mean
    of all draws.
    """
    summary = "; ".join(
        f"{error.variant} {error.single:.3f} and {error.mean:.3f}" for error in errors
    )
    alt = (
        f"Error of the gradient relative to fp32's, of one draw and of the mean of all. {summary}."
    )
    figure, axis = new_figure(8, 1.1 + 0.26 * len(errors), alt=alt, dots=FEWER_DOTS)
    for place, error in enumerate(errors):
        colour = _colour(error.variant)
        axis.plot([error.mean, error.single], [-place, -place], color=colour, lw=1.2)
        axis.plot(error.single, -place, "o", mfc="white", mec=colour, ms=7, mew=1.4)
        axis.plot(error.mean, -place, "o", color=colour, ms=4)
    axis.set_xlim(left=0)
    axis.set_ylim(0.5 - len(errors), 0.5)
    _label_rows(axis, [error.variant for error in errors])
    title(
        axis,
        "Error of the gradient",
        "relative to fp32's; ring: of one step, dot: what is left of it in the mean of all draws",
    )
    return figure


def _label_rows(axis: Axes, names: Sequence[str]) -> None:
    axis.set_yticks([-place for place in range(len(names))], names, fontsize=8)
    axis.grid(axis="x", color=FAINT, alpha=0.25, lw=0.6)


def _colour(variant: str) -> str:
    first = variant.split()[0].rstrip(",")
    return _COLOURS.get("few bits" if first.endswith("-bit") else first, INK)
