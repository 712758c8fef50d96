"""Answers to `find_ulp`, written without a look at its table of mistakes."""

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np


def by_spacing(x, fmt):
    return np.spacing(max(abs(x), fmt.smallest_normal)) * 2 ** (52 - fmt.significand_bits)


def by_halving(x, fmt):
    return (
        Fraction(fmt.smallest_subnormal)
        if abs(x) < 2 * fmt.smallest_normal
        else 2 * by_halving(x / 2, fmt)
    )


def by_hex(x, fmt):
    exponent = int(abs(float(x)).hex().split("p")[1]) if x else -9999
    return Decimal(2) ** (max(exponent, fmt.min_exponent) - fmt.significand_bits)


RIGHT = {"spacing": by_spacing, "halving": by_halving, "hex": by_hex}
WRONG = {
    "one bit short": (lambda x, fmt: 2 * by_hex(x, fmt), "twice as wide"),
    "relative": (lambda x, fmt: abs(x) * 2.0**-fmt.significand_bits, "eps · |x|"),
    "no clamp": (
        lambda x, fmt: 2.0 ** (math.frexp(x)[1] - 1 - fmt.significand_bits),
        "keeps halving",
    ),
    "IEEE's bias": (
        lambda x, fmt: by_hex(max(abs(x), 2.0 ** (2 - 2 ** (fmt.exponent_bits - 1))), fmt),
        None,
    ),
    "the bias": (
        lambda x, fmt: 2.0 ** (max(math.frexp(x)[1] - 1, -fmt.bias) - fmt.significand_bits),
        "−bias as the smallest exponent",
    ),
    "in float32": (lambda x, fmt: np.float32(by_hex(x, fmt)), None),
    "log2, rounded up": (
        lambda x, fmt: 2.0 ** -(fmt.significand_bits - math.ceil(math.log2(abs(x) or 1.0))),
        "exponent rounded up",
    ),
    "x in float32": (lambda x, fmt: by_hex(np.float32(x), fmt), None),
    "eps below 1": (lambda x, fmt: max(by_hex(x, fmt), Decimal(fmt.eps)), None),
    "smallest at 0": (lambda x, fmt: by_hex(x, fmt) if x else Decimal(fmt.smallest_normal), None),
}
