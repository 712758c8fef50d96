"""Answers to `update_rule`, written without a look at its table of mistakes."""

import math
from fractions import Fraction

import numpy as np
import torch


def branches(scale, streak, found_inf, growth, backoff, interval):
    if found_inf:
        return scale * backoff, 0
    if streak + 1 < interval:
        return scale, streak + 1
    return (scale * growth if scale * growth < 2.0**128 else scale), 0


def by_the_kernel(scale, streak, found_inf, growth, backoff, interval):
    s, k = torch.tensor(scale), torch.tensor(streak, dtype=torch.int32)
    torch._amp_update_scale_(s, k, torch.tensor(float(found_inf)), growth, backoff, interval)
    return [s, k]


def with_numpy_and_fractions(scale, streak, found_inf, growth, backoff, interval):
    grows = not found_inf and streak == interval - 1
    with np.errstate(over="ignore"):
        larger = np.float32(scale) * np.float32(growth)
    new = (
        Fraction(scale) * Fraction(backoff)
        if found_inf
        else larger
        if grows and np.isfinite(larger)
        else scale
    )
    return new, np.int64(0 if found_inf or grows else streak + 1)


RIGHT = {
    "branches": branches,
    "torch's kernel": by_the_kernel,
    "numpy and fractions": with_numpy_and_fractions,
}
WRONG = {
    "at least 1": (
        lambda *s: (max(by_the_kernel(*s)[0].item(), 1.0), branches(*s)[1]),
        "floor of 1",
    ),
    "at least 1 after a skip": (
        lambda s, k, f, g, b, n: (max(s * b, 1.0), 0) if f else branches(s, k, f, g, b, n),
        "floor of 1 after a skip",
    ),
    "backs off to an int": (
        lambda s, k, f, g, b, n: (math.floor(s * b), 0) if f else branches(s, k, f, g, b, n),
        None,
    ),
    "torch's defaults": (
        lambda s, k, f, g, b, n: branches(s, k, f, 2.0, 0.5, n),
        "always halves or doubles",
    ),
    "late": (
        lambda s, k, f, g, b, n: (s * b, 0) if f else (s, k + 1) if k < n else (s * g, 0),
        "grows late or never",
    ),
    "only falls": (
        lambda s, k, f, g, b, n: (s * b if f else s, 0 if f else k + 1),
        "grows late or never",
    ),
}
