"""Answers to `amp_ceiling`, written without a look at its table of mistakes."""

import statistics
from fractions import Fraction

import numpy as np
import torch


def seconds(parts):
    left = 1.0
    for share, factor in parts:
        left -= share * (1 - 1 / factor)
    return 1 / left


def exact(parts):
    left = Fraction(1)
    for share, factor in parts:
        left += Fraction(share) * ((Fraction(1) / Fraction(factor) if factor < 1e300 else 0) - 1)
    return 1 / left


def with_numpy(parts):
    shares, factors = np.array(parts).T
    return np.float64(1) / np.append(shares / factors, 1 - shares.sum()).sum()


def with_tensors(parts):
    shares, factors = torch.tensor(parts, dtype=torch.float64).unbind(1)
    return (1 - shares @ (1 - factors.reciprocal())).reciprocal()


def harmonic(parts):
    shares, factors = zip(*parts, strict=True)
    return statistics.harmonic_mean([*factors, 1], weights=[*shares, max(0, 1 - sum(shares))])


RIGHT = {
    "subtracts savings": seconds,
    "fractions": exact,
    "numpy": with_numpy,
    "tensors": with_tensors,
    "harmonic mean": harmonic,
}
WRONG = {
    "whole step": (
        lambda parts: np.prod([factor for _, factor in parts]),
        "applies the factors to the whole step",
    ),
    "inf as a slow one": (lambda parts: seconds([(s, min(f, 10.0)) for s, f in parts]), None),
    "the saving": (
        lambda parts: sum(share * (1 - 1 / factor) for share, factor in parts),
        "the time that is saved",
    ),
    "rounded": (lambda parts: round(seconds(parts)), None),
}
