"""Answers to `find_collision`, written without a look at its table of mistakes."""

import itertools
from fractions import Fraction

import numpy as np
import torch


def by_trying(significand_bits):
    previous = None
    for position in itertools.count():
        step = max(1, 2 ** (position.bit_length() - significand_bits - 1))
        value = round(Fraction(position, step)) * step  # ties to even
        if value == previous:
            return position
        previous = value


RIGHT = {
    "by trying": by_trying,
    "shifted, NumPy": lambda bits: np.int64(1 << bits + 1 | 1),
    "from eps, a tensor": lambda bits: torch.tensor(2 / 2.0**-bits + 1),
}
WRONG = {
    "eps, halved": (lambda bits: int(1 / 2.0**-bits) + 1, "forgets the hidden 1"),
    "cast to bf16": (lambda bits: torch.tensor(2.0 ** (bits + 1) + 1).bfloat16(), None),
    "a table of two": (lambda bits: {7: 257, 10: 2049}.get(bits, 257), None),
}
