"""Judge `ulp(x, fmt)` against the formats' own numbers: each pattern as torch reads it, and the gaps between them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from amp_course.bits.formats import BF16, FP8_E4M3, FP8_E5M2, FP16, FP32, FloatFormat
from amp_course.checking import Wrong
from amp_course.checking.asking import ask, number, show

_PLACES = ("between", "power of two", "negative", "below a power of two", "subnormal", "zero")


def judge(answer: Callable[..., Any]) -> None:
    """`ulp(x, fmt)` → the gap between the format's numbers at x, for five formats and drawn numbers."""
    rulers = {fmt: numbers(fmt) for fmt in (FP16, BF16, FP8_E4M3, FP8_E5M2)}
    for place in _PLACES:
        for fmt in (*rulers, FP32):
            for x in _drawn(place, fmt):
                want = gap(abs(x), rulers[fmt]) if fmt in rulers else float(np.spacing(np.float32(abs(x))))
                shown = f"({show(x)}, {fmt.name})"
                got = number(_asked(answer, place, shown, x, fmt), shown)
                if got != want:
                    raise Wrong(
                        f"ulp{shown} came out as {show(got)}, and it is {show(want)}: "
                        f"{_mistake(place, x, fmt, got, want)}"
                    )


def numbers(fmt: FloatFormat) -> np.ndarray:
    """Return the finite numbers ≥ 0 of a format that torch has, in order, as float64."""
    integer = torch.int16 if fmt.bits > 8 else torch.int8
    patterns = torch.arange(fmt.max_pattern + 1, dtype=torch.int32).to(integer)
    assert fmt.dtype is not None
    return patterns.view(fmt.dtype).double().numpy()


def gap(size: float, ruler: np.ndarray) -> float:
    """Return the distance from the largest number not above `size` to the next; the last gap at the end of the "
    "ruler."""
    above = min(int(np.searchsorted(ruler, size, side="right")), len(ruler) - 1)
    return float(ruler[above] - ruler[above - 1])


def _drawn(place: str, fmt: FloatFormat) -> list[float]:
    draw = random.Random()
    exponents = [0, 1, *(draw.randint(fmt.min_exponent + 1, fmt.max_exponent - 1) for _ in range(6))]
    powers = [math.ldexp(1.0, exponent) for exponent in exponents]
    if place == "between":
        # Numbers that fp32 has, so that its spacing can be asked of NumPy.
        return [float(np.float32(power * draw.uniform(1.1, 1.9))) for power in powers]
    if place == "power of two":
        ends = [fmt.smallest_normal, math.ldexp(1.0, fmt.max_exponent)]
        return (
            [*powers, *ends] if fmt == FP32 else [*powers, *ends, fmt.max]
        )  # NumPy calls the gap above fp32's last inf
    if place == "negative":
        return [-1.5, *(-power for power in powers), *(-1.25 * power for power in powers)]
    if place == "below a power of two":
        if fmt == FP32:
            return [float(np.nextafter(np.float32(power), np.float32(0))) for power in powers]
        return [math.nextafter(power, 0.0) for power in powers]
    if place == "subnormal":
        steps = [1, *(draw.randint(1, 2**fmt.significand_bits - 1) for _ in range(6))]
        return [sign * step * fmt.smallest_subnormal for step in steps for sign in (1, -1)]
    return [0.0, -0.0]


def _asked(answer: Callable[..., Any], place: str, shown: str, x: float, fmt: FloatFormat) -> Any:
    try:
        return ask(answer, shown, x, fmt)
    except Wrong as wrong:
        cure = {
            "negative": "The gap is the same on both sides of zero: begin with `abs(x)`",
            "zero": "0 has no logarithm. It is below the smallest normal number, so its ulp is the spacing of the subnormals",
        }.get(place)
        raise Wrong(f"{wrong}. {cure}" if cure else str(wrong)) from wrong


def _mistake(place: str, x: float, fmt: FloatFormat, got: float, want: float) -> str:
    size = abs(x)
    if got <= 0:
        return "a distance is positive" + (
            ": begin with `abs(x)`" if x < 0 else ", and never 0: the format has gaps everywhere"
        )
    if place == "negative":
        return "the gap is the same on both sides of zero: begin with `abs(x)`"
    if place in ("subnormal", "zero") or size < fmt.smallest_normal:
        return _below_the_normal(size, fmt, got)
    if place == "below a power of two" and got == 2 * want:
        return (
            f"{x!r} is below {show(size_up(size))} and got the gap of the binade above. `math.log2` of a number just "
            "below a power of two rounds up to a whole number; `math.frexp` splits the float exactly"
        )
    if got == fmt.eps:
        return (
            f"that is eps, the gap at 1. It doubles with each power of two, so from 2 on it is {show(2 * fmt.eps)}, "
            "and so forth"
        )
    if got == fmt.eps * size or (math.isclose(got, fmt.eps * size, rel_tol=1e-6) and math.frexp(got)[0] != 0.5):
        return (
            "eps · |x| grows with every x, and the gap stays the same from one power of two to the next: it is eps "
            f"times the power of two at or below |x|, here {show(want / fmt.eps)}"
        )
    if got == math.ldexp(size_down(size), -FP16.significand_bits) or got == FP16.eps:
        return f"that is fp16's gap: {fmt.name} has {fmt.significand_bits} significand bits, `fmt.significand_bits`"
    if got == 2 * want:
        return (
            "it is one power of two too wide. Two suspects: `math.frexp` gives a significand from 0.5 to 1 and so an "
            "exponent one higher than that of 1.xxx; and the hidden 1 is not among the significand bits"
        )
    if got == want / 2 and math.frexp(size)[0] == 0.5:
        return (
            "that is the gap below the power of two. At the power itself the wider gap above it counts, as in "
            "`math.ulp`"
        )
    if got == want / 2:
        return (
            "it is half of what is right: with M stored significand bits a binade is cut into 2^M steps, not 2^(M + 1)"
        )
    return f"from {show(size_down(size))} to {show(2 * size_down(size))} the format has 2^{fmt.significand_bits} steps"


def _below_the_normal(size: float, fmt: FloatFormat, got: float) -> str:
    if size and got == size_down(size) * fmt.eps:
        return (
            f"the halving ends at the smallest normal number, {show(fmt.smallest_normal)}. Below it all gaps are "
            f"equal: the exponent never goes under `fmt.min_exponent`, {fmt.min_exponent}"
        )
    if got == fmt.smallest_subnormal / 2:
        return (
            f"the smallest exponent is 1 − bias = {fmt.min_exponent}, that of field 1; subnormals have it too, not 0 "
            "− bias"
        )
    if got == fmt.smallest_normal:
        return "that is the smallest normal number. The subnormals lie between it and zero"
    return f"between zero and {show(fmt.smallest_normal)} the subnormals are evenly spaced, and the gap is the smallest of them"


def size_down(size: float) -> float:
    """Return the power of two at or below a positive number: 3.0 → 2.0."""
    return math.ldexp(1.0, math.frexp(size)[1] - 1)


def size_up(size: float) -> float:
    """Return the power of two above a positive number: 3.0 → 4.0."""
    return 2 * size_down(size)
