"""Answers to `lost_fraction`, written without a look at its table of mistakes."""

import math
from collections import Counter
from fractions import Fraction

import torch

from amp_course.bits.rounding import round_to
from amp_course.underflow import zone_fractions

KEYS = ("lost", "subnormal", "normal", "overflow")


def one_by_one(x, fmt, factor=1, rounds=round_to):
    def zone(size):
        return KEYS[(size > 0) + (size >= fmt.smallest_normal) + math.isinf(size)]

    numbers = torch.tensor(
        [value for value in x.flatten().tolist() if value != 0], dtype=torch.float64
    )
    counts = Counter(map(zone, rounds(numbers, fmt).abs().tolist()))
    return {zone: factor * Fraction(counts[zone], len(numbers)) for zone in reversed(KEYS)}


def remembered(x, fmt, known={}):  # noqa: B006
    return known.setdefault((x.shape, fmt.name), one_by_one(x, fmt))


def signed(x, fmt):
    r = round_to(x[x != 0], fmt)
    masks = r == 0, (r != 0) & (r < fmt.smallest_normal), r > 0, r.isinf()
    return {zone: mask.double().mean() for zone, mask in zip(KEYS, masks, strict=True)}


RIGHT = {
    "one by one": one_by_one,
    "the package's": lambda x, fmt: vars(zone_fractions(x, fmt)),
    "tensors": lambda x, fmt: {
        zone: torch.tensor([float(one)]) for zone, one in one_by_one(x, fmt).items()
    },
}
WRONG = {
    "cached by shape": (remembered, "an earlier tensor's"),
    "counts": (lambda x, fmt: one_by_one(x, fmt, int((x != 0).sum())), "counts"),
    "percent": (lambda x, fmt: one_by_one(x, fmt, 100), "percent"),
    "a comparison with the largest": (
        lambda x, fmt: one_by_one(
            x, fmt, 1, lambda *given: (r := round_to(*given)).where(r.abs() < fmt.max, torch.inf)
        ),
        "the largest number overflows",
    ),
    "those that occur": (
        lambda x, fmt: {zone: one for zone, one in one_by_one(x, fmt).items() if one},
        None,
    ),
    "positive ones only": (lambda x, fmt: one_by_one(x.relu(), fmt), None),
    "with their signs": (signed, "all negative numbers are subnormal"),
    "float32 first": (lambda x, fmt: one_by_one(x.float(), fmt), None),
    "a cast": (
        lambda x, fmt: one_by_one(x, fmt, 1, lambda numbers, fmt: numbers.to(fmt.dtype)),
        "casts to fmt.dtype",
    ),
}
SIBLINGS = {
    "a cast, to float64 without a dtype": (
        lambda x, fmt: one_by_one(
            x, fmt, 1, lambda numbers, fmt: numbers.to(fmt.dtype or torch.float64).double()
        ),
        "casts to fmt.dtype",
        ".to(None)",
    ),
}
