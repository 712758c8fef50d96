"""Compute, without torch, which tokens share a position id in a format, and what RoPE makes of it.

`panel_html.py` draws it for `CollisionExplorer`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain, groupby

from amp_course.bits.formats import FloatFormat
from amp_course.bits.scalar import decode, encode
from amp_course.positions.counting import (
    checked_length,
    distinct_positions,
    first_collision,
    first_past_range,
    most_sharing,
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
    right, rounded:   RoPE's similarity among those tokens, with exact ids and with the format's
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
    right: list[list[float]]
    rounded: list[list[float]]

    @property
    def largest_error(self) -> float:
        """How far the similarity of any two shown tokens is off; NaN where an id is inf."""
        pairs = zip(chain(*self.rounded), chain(*self.right), strict=True)
        errors = [abs(rounded - right) for rounded, right in pairs]
        return math.nan if any(map(math.isnan, errors)) else max(errors)


def share(fmt: FloatFormat, n: int, base: float = 10_000.0, head_size: int = 64) -> Sharing:
    """Return which of n ≥ 1 positions share an id: share(BF16, 512).distinct → 385.

    Raises TypeError and ValueError as `distinct_positions` and `Rope` do, and ValueError for n = 0.
    """
    if checked_length(n) < 1:
        raise ValueError(f"a context needs at least 1 token, not {n}")
    start = max(0, n - WINDOW)
    exact = range(start, n)
    ids = [decode(encode(position, fmt), fmt) for position in exact]
    counts = distinct_positions(n, fmt), first_collision(fmt), most_sharing(n, fmt)
    maps = similarity(exact, head_size, base), similarity(ids, head_size, base)
    shown = tuple(runs(ids, start))
    return Sharing(fmt, n, base, head_size, *counts, first_past_range(fmt), start, shown, *maps)


def runs(ids: Iterable[float], start: int = 0) -> list[Run]:
    """Group equal neighbours among ids, a list or a tensor (n,): [255, 256, 256] → 2 runs."""
    found = []
    for value, group in groupby(map(float, ids)):
        found.append(Run(start, len(list(group)), value))
        start += found[-1].count
    return found
