"""What single ops ask of a GPU, at any size, from a few sizes that were counted: for the book,
which has no torch.

Each count is a sum of products in which M, N and K occur at most once, such as 2·m·n·k or
4·(m·k + k·n + n + m·n), so the counts at sizes 1 and 2 give all others exactly.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import torch

from amp_course.speed.counting import OpCall
from amp_course.speed.one_op import KINDS, Counter, Setting, count_op
from amp_course.speed.roofline import FORMATS

_CORNERS = [*itertools.product((1, 2), repeat=3)]
_DTYPES = {name: dtype for dtype, name in FORMATS.items()}
Counts = Mapping[str, list[list[Any]]]


def record_counts() -> Counts:
    """Count each kind of op in fp32 and under AMP, as data for JSON.

    Kind and formats → for each call its op, kind, format, FLOPs and bytes.
    """
    fp32 = torch.float32
    lows = (torch.bfloat16, torch.float16)
    formats = [(fp32, fp32), *((low, arrives) for low in lows for arrives in (low, fp32))]
    counts = {}
    for kind, (dtype, arrives) in itertools.product(KINDS, formats):
        on = [Setting(m, n, k, dtype, arrives, gpu=True) for m, n, k in _CORNERS]
        calls = zip(*(count_op(kind, one) for one in on), strict=True)
        counts[_key(kind, on[0])] = [
            [
                same[0].op,
                same[0].kind,
                same[0].dtype and FORMATS[same[0].dtype],
                [one.flops for one in same],
                [one.bytes for one in same],
            ]
            for same in calls
        ]
    return counts


def count_from(counts: Counts) -> Counter:
    """Return a `count_op` that reads recorded counts, those of a GPU; its calls have no shapes."""

    def count(kind: str, on: Setting) -> tuple[OpCall, ...]:
        return tuple(
            OpCall(op, what, _DTYPES.get(fmt), _at(on, flops), _at(on, moved), ())
            for op, what, fmt, flops, moved in counts[_key(kind, on)]
        )

    return count


def _key(kind: str, on: Setting) -> str:
    return f"{kind} {FORMATS[on.dtype]} {FORMATS[on.arrives]}"


def _at(on: Setting, values: list[int]) -> int:
    """Return a count at the sizes of a setting, from its values at the corners."""
    whole = 0
    for corner, value in zip(_CORNERS, values, strict=True):
        for size, end in zip((on.m, on.n, on.k), corner, strict=True):
            value *= size - 1 if end == 2 else 2 - size
        whole += value
    return whole
