"""Answers to `count_ids`, written without a look at its table of mistakes."""

import math

import numpy as np
import torch

from amp_course.bits import encode, round_to


def patterns(n, fmt):
    exact = min(2 ** (fmt.significand_bits + 1), int(fmt.max) + 1)
    return float(n if n <= exact + 1 else exact + 1 + encode(n - 1, fmt) - encode(exact, fmt))


def halving(n, fmt, overflow=1):
    value, exact = (
        round_to(torch.tensor(n - 1.0, dtype=torch.float64), fmt).item(),
        2 ** (fmt.significand_bits + 1),
    )
    value, count = (int(fmt.max), 1 + overflow) if math.isinf(value) else (value, 1)
    while value > exact:
        value, count = value / 2, count + exact // 2
    return torch.tensor(count + value)


RIGHT = {
    "patterns": patterns,
    "halving, a tensor": halving,
    "NumPy": lambda n, fmt: np.int64(patterns(n, fmt)),
}
WRONG = {
    "a set": (
        lambda n, fmt: len({encode(position, fmt) for position in range(n)}),
        "loops over the positions",
    ),
    "an array, late": (
        lambda n, fmt: len(np.arange(n)) if n > 600 else patterns(n, fmt),
        "builds a tensor",
    ),
    "no end": (
        lambda n, fmt: (
            patterns(n, fmt)
            if n <= fmt.max
            else patterns(int(fmt.max) + 1, fmt)
            + round((n - 1) / (step := 2 ** (fmt.max_exponent - fmt.significand_bits)))
            - int(fmt.max) // step
        ),
        "the last spacing goes on past the end",
    ),
    "exact ones only": (lambda n, fmt: min(n, 2 << fmt.significand_bits), "stops at 2^p"),
    "no inf": (lambda n, fmt: halving(n, fmt, overflow=0), "leaves out inf"),
}
