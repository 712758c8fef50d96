"""The figures of chapter 04. They draw data, and compute nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from amp_course.kit.colours import COLOURS, FAINT
from amp_course.kit.style import new_figure, title


def frozen_figure(losses: Mapping[str, Sequence[float]]) -> Figure:
    """Draw losses over steps, a line for each name, the right one first: {"a region a step": …}."""
    ends = ", ".join(
        f"{name} from {values[0]:.3g} to {values[-1]:.3g}" for name, values in losses.items()
    )
    figure, axis = new_figure(7.2, 2.8, alt=f"The loss over the steps of each training: {ends}.")
    looks = ((COLOURS["amp_bf16"], "-"), (COLOURS["amp_fp16"], "--"), (FAINT, ":"))
    for (name, values), (colour, style) in zip(losses.items(), looks, strict=False):
        axis.plot(range(len(values)), values, ls=style, color=colour, lw=1.8, label=name)
    axis.set_ylim(bottom=0)
    axis.set_xlabel("step", fontsize=8)
    axis.legend(fontsize=8, frameon=False)
    title(axis, "Loss", "same model, same batches, same optimizer")
    return figure
