"""Answers to `encode_fp16`, written without a look at its table of mistakes."""

import math
import struct
from fractions import Fraction

import numpy as np
import torch

GRID = [float(np.uint16(p).view(np.float16)) for p in range(0x7C00)] + [65536.0]


def by_struct(value):
    try:
        return int.from_bytes(struct.pack("<e", value), "little")
    except OverflowError:
        return 0xFC00 if value < 0 else 0x7C00


def by_search(value, tie=lambda low: low % 2):
    sign = 0x8000 if math.copysign(1, value) < 0 else 0
    if value != value or math.isinf(value):
        return torch.tensor(0xFFFF if value != value else sign + 0x7C00)
    low = int(np.searchsorted(GRID, abs(value), side="right")) - 1
    if low == 0x7C00:
        return sign + low
    below, above = (
        abs(Fraction(value)) - Fraction(GRID[low]),
        Fraction(GRID[low + 1]) - abs(Fraction(value)),
    )
    return sign + low + (tie(low) if below == above else below > above)


RIGHT = {
    "struct": by_struct,
    "search": by_search,
    "numpy": np.errstate(over="ignore")(lambda value: np.float16(value).view(np.uint16)),
}
WRONG = {
    "ties to odd": (lambda value: by_search(value, lambda low: 1 - low % 2), None),
    "ties away from zero": (lambda value: by_search(value, lambda low: 1), "half up"),
    "clips first": (lambda value: by_search(max(-65504.0, min(value, 65504.0))), "clamps"),
    "torch": (
        lambda value: torch.tensor(value).double().half().view(torch.uint16).item(),
        "through float32",
    ),
    "unchanged": (float, "returns the value"),
    "a 17th bit": (lambda value: by_struct(value) + 0x8000 * (value < 0), None),
}


def nearly_ties(value):
    nearest = by_struct(value)
    if math.isfinite(value) and nearest & 0x7FFF < 0x7C00:
        near, sign = GRID[nearest & 0x7FFF], nearest & 0x8000
        for other in {max((nearest & 0x7FFF) - 1, 0), (nearest & 0x7FFF) + 1}:
            if (
                math.isclose(abs(value) - near, GRID[other] - abs(value), rel_tol=1e-4)
                and other % 2 == 0
            ):
                return sign + other
    return nearest


SIBLINGS = {
    "takes what is nearly a tie for one": (nearly_ties, "through float32", "it went through fp32")
}
