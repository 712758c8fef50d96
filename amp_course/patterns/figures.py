"""The figures of chapter 07. They draw data, and compute nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from amp_course.kit.colours import COLOURS, FAINT, INK
from amp_course.kit.style import new_figure, title

_LOOKS = [(COLOURS["fp32"], "-", "o"), (COLOURS["amp_fp16"], "--", "s")]  # colour, line, marker


def clipping_figure(
    scales: Sequence[float], norms: Mapping[str, Sequence[float]], max_norm: float
) -> Figure:
    """Draw the norm of the optimizer's gradient over the loss scale, a line for each loop."""
    ends = "; ".join(
        f"{name}: {values[0]:.2g} at the lowest, {values[-1]:.2g} at the highest"
        for name, values in norms.items()
    )
    alt = (
        f"Norm of the gradient that reaches the optimizer at loss scales from {scales[0]:g} to "
        f"{scales[-1]:g}. {ends}."
    )
    figure, axis = new_figure(7.2, 3.0, alt=alt)
    for (name, values), (colour, line, marker) in zip(norms.items(), _LOOKS, strict=False):
        axis.plot(scales, values, line, color=colour, marker=marker, ms=5, lw=1.6, label=name)
    axis.axhline(max_norm, color=FAINT, lw=0.8, ls=":")
    place = {"ha": "right", "va": "bottom"}
    axis.text(scales[-1], max_norm * 1.25, "max_norm", color=INK, fontsize=8, **place)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log", base=10)
    axis.set_ylim(top=max_norm * 10)
    axis.set_xlabel("loss scale", fontsize=8)
    axis.legend(fontsize=8, frameon=False, loc="lower left")
    under = "its norm as the optimizer sees it; log scales"
    title(axis, "What clipping leaves of the gradient", under)
    return figure


def resume_figure(
    losses: Mapping[str, Sequence[float]], scales: Mapping[str, Sequence[float]], stop: int
) -> Figure:
    """Draw the loss and loss scale of a run stopped after `stop` steps, by how it was resumed.

    losses, scales: name → a value for each step, including those before the stop
    """
    ends = "; ".join(
        f"{name}: loss {values[-1]:.2f} at the end, loss scale {scales[name][stop]:g} right after "
        f"the stop"
        for name, values in losses.items()
    )
    alt = (
        f"Loss and loss scale of one run, stopped after {stop} steps and resumed in "
        f"{len(losses)} ways. {ends}."
    )
    figure, (above, below) = new_figure(7.6, 4.2, rows=2, height_ratios=[1.5, 1], alt=alt)
    for (name, values), (colour, line, _) in zip(losses.items(), _LOOKS, strict=False):
        above.plot(range(len(values)), values, line, color=colour, lw=1.8, label=name)
        below.step(range(len(scales[name])), scales[name], line, color=colour, lw=1.8, where="mid")
    for axis in (above, below):
        axis.axvline(stop - 0.5, color=INK, lw=0.9)
        axis.set_xlim(-0.5, len(next(iter(losses.values()))) - 0.5)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    across = above.get_xaxis_transform()
    above.text(stop - 0.2, 0.97, "stopped, resumed", transform=across, fontsize=8, va="top")
    below.set_yscale("log", base=2)
    below.set_xlabel("step", fontsize=8)
    below.set_ylabel("loss scale", fontsize=8)
    above.set_ylabel("loss", fontsize=8)
    above.legend(fontsize=8, frameon=False, loc="lower left")
    under = "the loss over all pictures before each step, and the loss scale of the step"
    title(above, "One run, resumed in two ways", under)
    return figure
