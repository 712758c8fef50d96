"""The figures of chapter 12 on the mismatch between training and inference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from matplotlib.figure import Figure

from amp_course.frontiers.mismatch import Mismatch
from amp_course.kit.colours import FAINT, FORMAT_COLOURS, INK
from amp_course.kit.style import new_figure, title

_LINES = {"fp32": "-", "tf32": ":", "fp16": "--", "bf16": "-."}  # here lines cross: no two alike
_MARKERS = {"fp32": "o", "tf32": "s", "fp16": "D", "bf16": "x"}  # of a format; "^" for any other
_POINTS = 200  # of a curve


def mismatch_figure(found: Sequence[Mismatch]) -> Figure:
    """Draw how large log-ratios of tokens are, format by format, and next to them the importance
    ratios of sequences.

    found: one or more of each format, of different seeds; those of one format are drawn together
    Raises ValueError for none.
    """
    if not found:
        raise ValueError("no mismatch to draw: pass what `measure` returned, one or more")
    formats = list(dict.fromkeys(one.format for one in found))
    ratios = {
        name: torch.cat([one.sequence_ratios for one in found if one.format == name])
        for name in formats
    }
    tokens = {
        name: torch.cat([one.log_ratios.abs().flatten() for one in found if one.format == name])
        for name in formats
    }
    said = "; ".join(
        f"{name} {tokens[name].mean():.1e}, ratios {ratios[name].min():.3f} to "
        f"{ratios[name].max():.3f}"
        for name in formats
    )
    alt = (
        f"Mismatch of training and inference: mean size of a token's log-ratio, and ratios of "
        f"sequences. {said}."
    )
    figure, (curves, dots) = new_figure(8, 3.2, columns=2, width_ratios=[3, 2], alt=alt)
    for place, name in enumerate(formats):
        colour, line = _look(name)
        largest_first = tokens[name].sort(descending=True).values
        every = largest_first[:: max(1, len(largest_first) // _POINTS)]
        shares = torch.arange(1, len(every) + 1) / len(every)
        shown = every > 0  # a log-ratio of 0 has no place on a log scale
        curves.plot(every[shown], shares[shown], ls=line, color=colour, lw=1.6, label=name)
        across = place + torch.linspace(-0.25, 0.25, len(ratios[name]))
        dots.plot(across, ratios[name], _MARKERS.get(name, "^"), color=colour, ms=3, ls="")
    curves.set_xscale("log")
    curves.set_xlabel("|log p(training) − log p(inference)|", fontsize=8)
    curves.legend(fontsize=8, frameon=False)
    title(curves, "A token", "share of tokens whose log-ratio is at least this large")
    dots.axhline(1, color=FAINT, lw=0.8)
    dots.set_xticks(range(len(formats)), formats, fontsize=8)
    dots.ticklabel_format(axis="y", useOffset=False)
    count = {one.log_ratios.shape[1] for one in found}
    title(
        dots,
        "A sequence",
        f"importance ratio over {' or '.join(map(str, sorted(count)))} tokens, a mark for each",
    )
    return figure


def _look(name: str) -> tuple[str, Any]:
    """Return the colour and the line style of a format."""
    return FORMAT_COLOURS.get(name, INK), _LINES.get(name, ":")
