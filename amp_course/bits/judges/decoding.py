"""Judge the decoding of fp16 patterns: all 65,536 of them, against NumPy's float16."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from amp_course.bits.formats import FP16
from amp_course.bits.scalar import kind, split
from amp_course.checking import Wrong
from amp_course.checking.asking import ask, number, same, show

_SIGN = 2 ** (FP16.bits - 1)
_STEP = 2**FP16.significand_bits  # patterns in a binade
_INF = FP16.max_pattern + 1


def judge(answer: Callable[..., Any]) -> None:
    """`decode(pattern)` → the value of each fp16 pattern, in an order in which the first mistake tells most."""
    values = np.arange(2**FP16.bits, dtype=np.uint16).view(np.float16).astype(np.float64).tolist()
    for pattern in _in_teaching_order():
        shown = f"{pattern:#06x}"
        got, want = number(ask(answer, shown, pattern), shown), values[pattern]
        if not same(got, want):
            raise Wrong(f"{shown} came out as {show(got)}, and it is {show(want)}: {_mistake(pattern, got, want)}")


def _in_teaching_order() -> Iterator[int]:
    """Normal numbers, subnormals, zeros, infinities, NaN; positive before negative, a plain example before drawn "
    "ones."""
    one, tiny = FP16.bias * _STEP, 1
    groups = [
        (one, range(_STEP, _INF)),
        (_SIGN + one, range(_SIGN + _STEP, _SIGN + _INF)),
        (tiny, range(tiny, _STEP)),
        (_SIGN + tiny, range(_SIGN + tiny, _SIGN + _STEP)),
        (0, [_SIGN]),
        (_INF, [_SIGN + _INF]),
        (_INF + _STEP // 2, range(_INF + 1, _SIGN)),
        (_SIGN + _INF + 1, range(_SIGN + _INF + 1, 2 * _SIGN)),
    ]
    for first, patterns in groups:
        yield first
        yield from random.Random().sample(patterns, len(patterns))


def _mistake(pattern: int, got: float, want: float) -> str:
    return {"normal": _normal, "subnormal": _subnormal, "zero": _zero, "infinity": _infinity, "NaN": _nan}[
        kind(pattern, FP16)
    ](pattern, got, want)


def _normal(pattern: int, got: float, want: float) -> str:
    sign, field, significand = split(pattern, FP16)
    size, one = abs(got), math.ldexp(1.0, field - FP16.bias)  # the hidden 1, with its weight
    if got == -want:
        return _sign_lost(pattern)
    if sign and size == math.ldexp(abs(want), 2**FP16.exponent_bits):
        return (
            f"the sign bit is still in your exponent field, which reads {field + 2**FP16.exponent_bits}. Mask it off: "
            f"`(pattern >> {FP16.significand_bits}) & {FP16.top_field:#x}`"
        )
    if 0 < size < math.inf:
        half, power = math.frexp(size / abs(want))
        if half == 0.5 and power - 1 == FP16.significand_bits:
            return (
                f"the significand counts in steps of 2^-{FP16.significand_bits}: divide it, hidden 1 and all, by "
                f"{_STEP}"
            )
        if half == 0.5:
            used = FP16.bias - (power - 1)
            return (
                f"every power of two is off by {power - 1:+d}, as with a bias of {used}. The bias puts 1.0 in the "
                f"middle of the range: 2^({FP16.exponent_bits} − 1) − 1 = {FP16.bias}"
            )
    if size == abs(want) - one:
        return (
            f"the hidden 1 is missing: a normal number is 1.significand, here 1 + {significand}/{_STEP}, and the 1 is "
            "not stored"
        )
    if size == one:
        return (
            f"that is the power of two alone: its significand, {significand} of {_STEP}, adds {significand}/{_STEP} "
            "of it"
        )
    if size == (1 + significand / (_STEP - 1)) * one:
        return (
            f"the significand was divided by {_STEP - 1}, its largest value. {FP16.significand_bits} bits after the "
            f"binary point count in steps of 1/{_STEP}"
        )
    return (
        f"its fields are sign {sign}, exponent {field}, significand {significand}, so it is (−1)^{sign} · 2^({field} "
        f"− {FP16.bias}) · (1 + {significand}/{_STEP})"
    )


def _subnormal(pattern: int, got: float, want: float) -> str:
    sign, _, significand = split(pattern, FP16)
    size, low = abs(got), math.ldexp(1.0, -FP16.bias)  # what field 0 would weigh if it were a normal one
    if got == -want:
        return _sign_lost(pattern)
    if size in (low * (1 + significand / _STEP), 2 * low * (1 + significand / _STEP)):
        return (
            f"exponent field 0 has no hidden 1. A subnormal is 0.significand, {significand}/{_STEP} here, times "
            f"2^{FP16.min_exponent}"
        )
    if size == low * significand / _STEP:
        return (
            f"you gave it the exponent 0 − {FP16.bias}, half of what is right. Subnormals share the exponent of field "
            f"1, 1 − {FP16.bias} = {FP16.min_exponent}, so that they go on below it in equal steps"
        )
    if got == 0:
        return (
            "not every pattern with exponent field 0 is zero. It is a subnormal: without a hidden 1, down to "
            f"{show(FP16.smallest_subnormal)}"
        )
    return (
        f"its exponent field is 0, so it is subnormal: (−1)^{sign} · 2^{FP16.min_exponent} · (0 + "
        f"{significand}/{_STEP})"
    )


def _zero(pattern: int, got: float, want: float) -> str:
    if got == 0 and pattern == 0:
        return "its sign bit is 0, so this zero is positive"
    if got == 0:
        return (
            "the sign of zero got lost. −0.0 equals 0.0 and is not the same: it is where a negative number that "
            "underflows goes, and 1/x keeps its sign. The int 0 has no sign, `-1.0 * 0.0` and `math.copysign` have"
        )
    return "exponent field 0 has no hidden 1, and with a significand of 0 nothing is left: it is zero"


def _infinity(pattern: int, got: float, want: float) -> str:
    if got == -want:
        return _sign_lost(pattern)
    if got != got:
        return (
            "inf and NaN share an exponent field of all ones. A significand of 0 means inf; any other means NaN, not "
            "the other way round"
        )
    return (
        f"an exponent field of all ones, {FP16.top_field}, is no exponent. With a significand of 0 it means inf, and "
        f"the largest number is {show(FP16.max)}"
    )


def _nan(pattern: int, got: float, want: float) -> str:
    significand = split(pattern, FP16).significand
    if math.isinf(got):
        return (
            f"its exponent field is all ones and its significand is {significand}. Only a significand of 0 means inf; "
            "every other, large or small, means NaN"
        )
    return (
        f"an exponent field of all ones, {FP16.top_field}, is no exponent, with whichever significand: this one is "
        f"{significand}, not 0, so it means NaN"
    )


def _sign_lost(pattern: int) -> str:
    said = "1, so the number is negative" if pattern & _SIGN else "0, so the number is positive"
    return f"the sign bit, the first of the {FP16.bits}, is {said}"
