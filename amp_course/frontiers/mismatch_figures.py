"""The figure of the mismatch between training and inference."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from matplotlib.figure import Figure

from amp_course.frontiers.mismatch import Mismatch
from amp_course.kit.colours import FAINT, FORMAT_COLOURS, INK
from amp_course.kit.style import new_figure, title

_LINES = {"fp32": "-", "fp16": "--", "bf16": "-."}  # here lines cross: no two alike
_MARKERS = {"fp32": "o", "fp16": "D", "bf16": "x"}
_POINTS = 200  # of a curve


def mismatch_figure(found: Sequence[Mismatch]) -> Figure:
    """Draw the sizes of tokens' log-ratios, a curve for each format, next to the importance ratios
    of sequences.
    """
    ratios = [mismatch.sequence_ratios for mismatch in found]
    summary = "; ".join(
        f"{mismatch.format} {mismatch.mean:.1e}, ratios {each.min():.3f} to {each.max():.3f}"
        for mismatch, each in zip(found, ratios, strict=True)
    )
    alt = (
        f"Mismatch of training and inference: mean size of a token's log-ratio, and ratios of "
        f"sequences. {summary}."
    )
    figure, (curves, dots) = new_figure(8, 3.2, columns=2, width_ratios=[3, 2], alt=alt)
    for place, mismatch in enumerate(found):
        name, colour = mismatch.format, FORMAT_COLOURS.get(mismatch.format, INK)
        sizes = mismatch.log_ratios.abs().flatten().sort(descending=True).values
        sizes = sizes[:: max(1, len(sizes) // _POINTS)]
        shares = torch.arange(1, len(sizes) + 1) / len(sizes)
        nonzero = sizes > 0  # a log scale has no 0
        line = _LINES.get(name, ":")
        curves.plot(sizes[nonzero], shares[nonzero], line, color=colour, lw=1.6, label=name)
        across = place + torch.linspace(-0.25, 0.25, len(ratios[place]))
        dots.plot(across, ratios[place], _MARKERS.get(name, "^"), color=colour, ms=3, ls="")
    curves.set_xscale("log")
    curves.set_xlabel("|log p(training) − log p(inference)|", fontsize=8)
    curves.legend(fontsize=8, frameon=False)
    title(curves, "A token", "share of tokens whose log-ratio is at least this large")
    dots.axhline(1, color=FAINT, lw=0.8)
    dots.set_xticks(range(len(found)), [mismatch.format for mismatch in found], fontsize=8)
    dots.ticklabel_format(axis="y", useOffset=False)
    count = found[0].log_ratios.shape[1]
    title(dots, "A sequence", f"importance ratio over {count} tokens, a mark for each")
    return figure
