"""Answers to `derive_limits`, written without a look at its table of mistakes."""

import functools
from fractions import Fraction

import numpy as np

from amp_course.bits import FloatFormat, decode

KEYS = ("max", "eps", "smallest_normal", "smallest_subnormal")


def last(E, M, specials):
    return 2 ** (E + M) - {"ieee": 2**M + 1, "fn": 2, "finite": 1}[specials]


def exact(E, M, specials):
    bias, (field, significand) = 2 ** (E - 1) - 1, divmod(last(E, M, specials), 2**M)
    largest = (1 + Fraction(significand, 2**M)) * Fraction(2) ** (field - bias)
    return dict(
        zip(
            KEYS,
            (largest, Fraction(1, 2**M), 2.0 ** (1 - bias), 2.0 ** (1 - bias - M)),
            strict=True,
        )
    )


def by_decoding(*widths):
    read, (E, M, _) = functools.partial(decode, fmt=FloatFormat.of(*widths)), widths
    found = {
        "smallest_subnormal": read(1),
        "smallest_normal": np.array([read(2**M)]),
        "max": read(last(*widths)),
    }
    return found | {"eps": np.float64(read(((2 ** (E - 1) - 1) << M) + 1) - 1)}


def the_courses(*widths):
    return {key: getattr(FloatFormat.of(*widths), key) for key in KEYS}


RIGHT = {"exact": exact, "by decoding": by_decoding, "the course's": the_courses}
WRONG = {
    "always IEEE": (lambda E, M, specials: exact(E, M, "ieee"), "fn as IEEE"),
    "E4M3 known by its widths": (
        lambda E, M, specials: exact(E, M, "fn" if (E, M) == (4, 3) else "ieee"),
        None,
    ),
    "smallest is eps": (
        lambda E, M, specials: exact(E, M, specials) | {"smallest_subnormal": 2.0**-M},
        None,
    ),
    "2^1024 on the way": (
        lambda *widths: exact(*widths) if float(2 * exact(*widths)["max"]) else None,
        None,
    ),
    "in float32": (
        lambda *widths: {key: np.float32(value) for key, value in exact(*widths).items()},
        None,
    ),
    "a tuple": (lambda *widths: tuple(exact(*widths).values()), None),
    "no number but the last is fn's, all ones too": (
        lambda E, M, specials: exact(E, M, "fn" if specials == "finite" else specials),
        "finite as fn",
    ),
}


def with_a_higher_bias(E, M, specials):
    found = exact(E, M, specials)
    return {key: one / 2 ** (key != "eps") for key, one in found.items()}


SIBLINGS = {"a bias one too high": (with_a_higher_bias, "smallest normal halved", "It has field 1")}
