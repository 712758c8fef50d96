"""The figures of chapter 12 on the mismatch between training and inference."""

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
    """Draw how large log-ratios of tokens are, a curve for each of some formats, and next to them
    the importance ratios of sequences.
    """
    tokens = [one.log_ratios.abs().flatten() for one in found]
    ratios = [one.sequence_ratios for one in found]
    said = "; ".join(
        f"{one.format} {one.mean:.1e}, ratios {each.min():.3f} to {each.max():.3f}"
        for one, each in zip(found, ratios, strict=True)
    )
    alt = (
        f"Mismatch of training and inference: mean size of a token's log-ratio, and ratios of "
        f"sequences. {said}."
    )
    figure, (curves, dots) = new_figure(8, 3.2, columns=2, width_ratios=[3, 2], alt=alt)
    for place, one in enumerate(found):
        name, colour = one.format, FORMAT_COLOURS.get(one.format, INK)
        largest_first = tokens[place].sort(descending=True).values
        every = largest_first[:: max(1, len(largest_first) // _POINTS)]
        shares = torch.arange(1, len(every) + 1) / len(every)
        shown = every > 0  # a log-ratio of 0 has no place on a log scale
        line = _LINES.get(name, ":")
        curves.plot(every[shown], shares[shown], line, color=colour, lw=1.6, label=name)
        across = place + torch.linspace(-0.25, 0.25, len(ratios[place]))
        dots.plot(across, ratios[place], _MARKERS.get(name, "^"), color=colour, ms=3, ls="")
    curves.set_xscale("log")
    curves.set_xlabel("|log p(training) − log p(inference)|", fontsize=8)
    curves.legend(fontsize=8, frameon=False)
    title(curves, "A token", "share of tokens whose log-ratio is at least this large")
    dots.axhline(1, color=FAINT, lw=0.8)
    dots.set_xticks(range(len(found)), [one.format for one in found], fontsize=8)
    dots.ticklabel_format(axis="y", useOffset=False)
    count = found[0].log_ratios.shape[1]
    title(dots, "A sequence", f"importance ratio over {count} tokens, a mark for each")
    return figure
