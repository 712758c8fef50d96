"""Judge the encoding of Python floats as fp16 patterns, against NumPy's cast, which rounds once and to even."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np

from amp_course.bits.formats import FP16
from amp_course.bits.scalar import decode, split, ulp
from amp_course.checking import Wrong
from amp_course.checking.asking import ask, integer, show

_SIGN = 2 ** (FP16.bits - 1)
_STEP = 2**FP16.significand_bits  # patterns in a binade
_INF = FP16.max_pattern + 1
_TINY = FP16.smallest_subnormal
_DRAWN = 1500  # numbers of any size, at the end

Case = tuple[str, float]


def judge(answer: Callable[..., Any]) -> None:
    """`encode(value)` → the nearest fp16 pattern, ties to even, for numbers drawn anew in each kind of place."""
    cases = _cases()
    with np.errstate(all="ignore"):
        patterns = np.array([value for _, value in cases]).astype(np.float16).view(np.uint16).tolist()
    for (place, value), want in zip(cases, patterns, strict=True):
        shown = show(value)
        got = integer(ask(answer, shown, value), shown)
        _about_range(got, want, shown)
        if got != want and not (place == "NaN" and got % _SIGN > _INF):
            raise Wrong(
                f"{shown} came out as {got:#06x}, which is {show(decode(got, FP16))}, instead of {want:#06x}, "
                f"{show(decode(want, FP16))}: {_mistake(place, value, got, want)}"
            )


def _cases() -> list[Case]:
    """What is asked, kind of place by kind of place, so that the first mistake tells most."""
    draw = random.Random()
    normals = [decode(draw.randrange(_STEP, FP16.max_pattern), FP16) for _ in range(40)]
    subnormals = [draw.randrange(1, _STEP) * _TINY for _ in range(20)]
    ties = [x + ulp(x, FP16) / 2 for x in normals]
    first_gap = 1 / FP16.eps * 2  # 2048: from here on the numbers stand 2 apart
    top = FP16.max + ulp(FP16.max, FP16) / 2  # 65520: half a step past the largest
    places: dict[str, list[float]] = {
        "exact": [1.0, 1.5, FP16.max, FP16.smallest_normal, *normals],
        "negative": [-1.0, *(-x for x in normals)],
        "carry": [
            math.ldexp(2 - FP16.eps / 4, exponent) for exponent in (0, 1, draw.randrange(2, 14), FP16.min_exponent)
        ],
        "between": [1 + 0.75 * FP16.eps, *(x + draw.uniform(0.55, 0.95) * ulp(x, FP16) for x in normals)],
        "below half": [1 + 0.25 * FP16.eps, *(x + draw.uniform(0.05, 0.45) * ulp(x, FP16) for x in normals)],
        "tie": [first_gap + 1, first_gap + 3, *ties],
        "negative, rounded": [-first_gap - 3, *(-x for x in ties), *(-x - 0.7 * ulp(x, FP16) for x in normals)],
        "near the top": [top - 0.01, -top + 0.01],
        "past the top": [top, -top, 2 * FP16.max, -1e300, math.inf, -math.inf],
        "subnormal": [1.5 * FP16.smallest_normal / 2, _TINY, *subnormals, *(-x for x in subnormals)],
        "subnormal, rounded": [
            1.75 * _TINY,
            1.25 * _TINY,
            1.5 * _TINY,
            2.5 * _TINY,
            0.5 * _TINY,
            0.51 * _TINY,
            *(x + draw.uniform(-0.49, 0.49) * _TINY for x in subnormals),
            (_STEP - 0.5) * _TINY,
        ],
        "zero": [0.0, -0.0, 1e-30, -1e-30, 5e-324],
        "NaN": [math.nan],
        "twice": [1 + FP16.eps / 2 + 2.0**-40, *(x * (1 + 2.0**-45) for x in ties), top * (1 - 2.0**-50)],
        "any": [_drawn(draw) for _ in range(_DRAWN)],
    }
    return [(place, value) for place, values in places.items() for value in values]


def _drawn(draw: random.Random) -> float:
    exponent = draw.randint(FP16.min_exponent - FP16.significand_bits - 2, FP16.max_exponent + 1)
    return math.ldexp(draw.uniform(1, 2), exponent) * draw.choice((1, -1))


def _about_range(got: int, want: int, shown: str) -> None:
    if 0 <= got < 2**FP16.bits:
        return
    if got + 2**FP16.bits == want:
        raise Wrong(
            f"{shown} came out as {got}, its pattern read as a signed number: `& {2**FP16.bits - 1:#x}` gives the "
            f"pattern itself, {want:#06x}"
        )
    fields = split(want, FP16)
    raise Wrong(
        f"{shown} came out as {got:#x}, and a pattern of {FP16.bits} bits goes from 0x0 to {2**FP16.bits - 1:#x}. It "
        f"is {want:#06x}: sign {fields.sign}, exponent field {fields.exponent}, significand {fields.significand}"
    )


def _mistake(place: str, value: float, got: int, want: int) -> str:
    size, right = got % _SIGN, want % _SIGN
    if got ^ want == _SIGN:
        return _sign_lost(value)
    if place == "NaN":
        return _nan(size)
    if place in ("exact", "negative"):
        return _exact(size, right)
    if place == "carry" and abs(size - right) > 1:
        return (
            "the significand was rounded up to a full 2.0, and the carry belongs to the exponent field. Add the two "
            "parts with `+`, where `|` or a mask loses the carry"
        )
    if place == "past the top":
        return _past_the_top(value, size)
    if place == "near the top":
        return (
            f"a value past {show(FP16.max)} is not inf yet: up to half a step more, below "
            f"{show(FP16.max + ulp(FP16.max, FP16) / 2)}, {show(FP16.max)} is the nearest. Round first, then look for "
            "overflow"
        )
    if place == "twice" and got == int(np.array([np.float32(value)]).astype(np.float16).view(np.uint16)[0]):
        return (
            "it was rounded twice: to fp32 first, which made a tie of it, and then to even. Round the float as it is, "
            "once (torch's own cast from float64 goes by fp32 and does this too)"
        )
    if right < _STEP and place != "zero":
        return _subnormal(value, size, right)
    if place == "zero":
        return (
            "it is far below half of the smallest subnormal, so the nearest is a zero, and the sign of the value stays"
        )
    return _rounding(value, got, want)


def _rounding(value: float, got: int, want: int) -> str:
    size, right = got % _SIGN, want % _SIGN
    low, high = (decode(p, FP16) for p in sorted((right, size)))
    if abs(size - right) != 1:
        return "that is not even a neighbour: compare the three fields, one by one"
    if abs(value) * 2 == low + high:
        how = "half up, away from zero" if size > right else "half down"
        return (
            f"the tie was rounded {how}. It stands exactly between {show(low)} and {show(high)}, and a tie goes to "
            "the pattern that ends in 0, or sums drift one way"
        )
    if size < right:
        return (
            f"the bits past the last were cut off: {show(high)} is nearer than {show(low)}. Round the significand to "
            "the nearest"
        )
    return f"it was rounded up although {show(low)} is nearer than {show(high)}"


def _exact(size: int, right: int) -> str:
    off, rest = divmod(size - right, _STEP)
    if rest == 0 and off:
        cause = (
            f"The bias is {FP16.bias}, `math.frexp` gives an exponent one higher (1.0 is 0.5 · 2^1), and the hidden 1 "
            "is not stored"
            if off == 1
            else f"The field of exponent e is e + {FP16.bias}; 1.0 has e = 0"
        )
        return f"fp16 has this value, and your exponent field is {off:+d} off. {cause}"
    if size // _STEP == right // _STEP:
        return (
            f"fp16 has this value, and your significand is {size % _STEP} instead of {right % _STEP}: what comes "
            f"after the hidden 1, times {_STEP}"
        )
    return "fp16 has this value, and nothing needs rounding: compare the three fields, one by one"


def _past_the_top(value: float, size: int) -> str:
    if size == _INF - 1:
        return (
            f"overflow was clamped to the largest number. From {show(FP16.max + ulp(FP16.max, FP16) / 2)} on, half a "
            f"step past {show(FP16.max)}, fp16 gives inf, and a loss scaler relies on seeing it"
        )
    if size > _INF:
        return "that is a NaN pattern. inf is the exponent field of all ones with a significand of 0"
    return "past the largest number comes inf: the exponent field of all ones, with a significand of 0"


def _subnormal(value: float, size: int, right: int) -> str:
    steps = abs(value) / _TINY
    if size == 0 and steps >= 1:
        return (
            f"it was flushed to zero, and fp16 goes on below its smallest normal number in steps of {show(_TINY)}: "
            f"this is {steps:g} of them"
        )
    if abs(size - right) == 1 and steps != int(steps):
        if steps * 2 == int(steps * 2):
            return f"{steps:g} steps of {show(_TINY)} are a tie, and a tie goes to the even number of steps"
        return f"{steps:.4g} steps of {show(_TINY)} have to be rounded to the nearest whole number of steps"
    return (
        f"below {show(FP16.smallest_normal)} the exponent stays at {FP16.min_exponent}, the field is 0 and there is "
        f"no hidden 1: the pattern is the number of steps of {show(_TINY)}, here {steps:.4g}"
    )


def _nan(size: int) -> str:
    if size == _INF:
        return (
            "NaN became inf. Both have an exponent field of all ones, and NaN a significand that is not 0: 0x7e00 is "
            "usual"
        )
    return (
        "NaN became a number, and nobody will see that something went wrong. NaN is not equal to itself: test for it "
        "first"
    )


def _sign_lost(value: float) -> str:
    if value == 0 or abs(value) < _TINY / 2:
        return (
            "the sign of zero got lost. `value < 0` is False for −0.0: `math.copysign(1.0, value)` sees the sign, and "
            "a negative number that underflows keeps it"
        )
    return f"the sign bit, the first of the {FP16.bits}, is {int(value < 0)} for this value"
