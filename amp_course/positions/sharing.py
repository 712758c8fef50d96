"""Gather what `CollisionExplorer` shows: who shares a position id in a format, and what RoPE makes
of that.

Plain data; `panel_html.py` and `figures.py` draw it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from amp_course.bits.formats import FloatFormat
from amp_course.positions.counting import (
    distinct_positions,
    first_collision,
    first_past_range,
    most_sharing,
    position_values,
)
from amp_course.positions.rope import similarity

WINDOW = 48  # tokens that are shown one by one


@dataclass(frozen=True)
class Run:
    """Tokens in a row that share one id: `count` of them from `start` on."""

    start: int
    count: int
    value: float


@dataclass(frozen=True)
class Sharing:
    """A context of n tokens in a format: the counts, and its last tokens one by one.

    first_past_range: the first position that is inf, or None
    start, runs:      the window of the last WINDOW tokens, and which of them share an id
    right, rounded:   RoPE's similarity among those tokens, (w, w), with exact ids and with the
                      format's
    """

    fmt: FloatFormat
    n: int
    base: float
    head_size: int
    distinct: int
    first_collision: int
    most_sharing: int
    first_past_range: int | None
    start: int
    runs: tuple[Run, ...]
    right: Tensor
    rounded: Tensor

    @property
    def largest_error(self) -> float:
        """How far the similarity of any two shown tokens is off; NaN where an id is inf."""
        return (self.rounded - self.right).abs().max().item()


def share(fmt: FloatFormat, n: int, base: float = 10_000.0, head_size: int = 64) -> Sharing:
    """Return who shares what among n ≥ 1 positions: share(BF16, 512).distinct → 385.

    Raises TypeError and ValueError as `distinct_positions` and `Rope` do, and ValueError for no
    tokens at all.
    """
    if n < 1:
        raise ValueError(f"a context needs at least 1 token, not {n}")
    start = max(0, n - WINDOW)
    ids = position_values(n, fmt, start)
    exact = torch.arange(start, n, dtype=torch.float64)
    return Sharing(
        fmt,
        n,
        base,
        head_size,
        distinct_positions(n, fmt),
        first_collision(fmt),
        most_sharing(n, fmt),
        first_past_range(fmt),
        start,
        tuple(runs(ids, start)),
        similarity(exact, head_size, base),
        similarity(ids, head_size, base),
    )


def runs(ids: Tensor, start: int = 0) -> list[Run]:
    """Group neighbours of equal id, (n,) float: [255, 256, 256, 258] → 255 once, 256 twice,
    258 once.
    """
    found = []
    for value, count in zip(
        *(part.tolist() for part in torch.unique_consecutive(ids, return_counts=True)), strict=True
    ):
        found.append(Run(start, count, value))
        start += count
    return found
