"""Judge the derivation of a format's limits from its widths and the rule for its special patterns."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from typing import Any

from amp_course.bits.formats import BF16, FP4_E2M1, FP6_E3M2, FP8_E4M3, FP8_E5M2, FP16, FP32, FloatFormat, Specials
from amp_course.checking import Wrong
from amp_course.checking.asking import ask, number, show

_KEYS = ("eps", "smallest_normal", "smallest_subnormal", "max")  # from the simple to the tricky


def judge(answer: Callable[..., Any]) -> None:
    """`limits(exponent_bits, significand_bits, specials)` → the four limits, for known formats and drawn widths."""
    known = (FP16, BF16, FP32, FP8_E5M2, FP8_E4M3, FP4_E2M1, FP6_E3M2)
    for fmt in (*known, *_drawn()):
        arguments = (fmt.exponent_bits, fmt.significand_bits, fmt.specials)
        shown = f"{fmt.name}, {arguments}"
        got = ask(answer, shown, *arguments)
        if got is None:
            raise Wrong(f"your function returned None for {shown}: give the dict back with `return`")
        if not isinstance(got, Mapping) or set(got) != set(_KEYS):
            have = f"the keys {', '.join(map(str, got))}" if isinstance(got, Mapping) else f"a {type(got).__name__}"
            raise Wrong(f"the task asks for a dict with the keys {', '.join(sorted(_KEYS))}, and yours is {have}")
        for key in _KEYS:
            value, want = number(got[key], f"{key} of {shown}"), getattr(fmt, key)
            if value != want:
                raise Wrong(
                    f"{key} of {shown} came out as {show(value)}, and it is {show(want)}: "
                    f"{_mistake(key, fmt, value, want)}"
                )


def _drawn() -> list[FloatFormat]:
    draw = random.Random()
    kinds: tuple[Specials, ...] = ("ieee", "fn", "finite")
    return [FloatFormat.of(draw.randint(2, 8), draw.randint(1, 12), kind) for kind in kinds for _ in range(8)]


def _mistake(key: str, fmt: FloatFormat, got: float, want: float) -> str:
    steps, e = fmt.significand_bits, fmt.exponent_bits
    if key == "eps":
        return _eps(steps, got, want)
    if key == "smallest_normal":
        return _smallest_normal(fmt, got, want)
    if key == "smallest_subnormal":
        if got == fmt.smallest_normal:
            return f"that is the smallest normal number. Below it come subnormals, {steps} halvings further down"
        if got == want / 2:
            return (
                f"subnormals have the exponent of field 1, 1 − bias = {fmt.min_exponent}, not 0 − bias: their "
                f"smallest is 2^({fmt.min_exponent} − {steps})"
            )
        return (
            f"it has a significand of 1, the last of {steps} bits, no hidden 1, and the smallest normal number's "
            "exponent"
        )
    by_another = _by_another_rule(fmt, got)
    if by_another:
        return by_another
    if got == math.ldexp(1.0, fmt.max_exponent):
        return f"that is a power of two: the largest significand is nearly 2, {2 - fmt.eps!r} if all its bits may be 1"
    if got == math.ldexp(1.0, fmt.max_exponent + 1):
        return (
            "that is where the format ends, the first power of two it does not hold. The largest significand is one "
            "step short of 2"
        )
    return (
        f"the last exponent field that holds numbers is {fmt.max_pattern >> steps} of 0 to {2**e - 1}; take the bias "
        "off it, and the largest significand that is a number there"
    )


def _eps(steps: int, got: float, want: float) -> str:
    if got == want / 2:
        return (
            f"from 1 to 2 there are 2^{steps} steps: the {steps} stored bits count them, the hidden 1 does not. (Half "
            "of eps is the largest rounding error, the unit roundoff)"
        )
    if got == 2 * want:
        return f"all {steps} bits that are stored stand after the hidden 1: the last of them counts 2^-{steps}"
    return f"eps is the step from 1 to the next number: the last of the {steps} bits after the hidden 1"


def _smallest_normal(fmt: FloatFormat, got: float, want: float) -> str:
    bias = f"2^({fmt.exponent_bits} − 1) − 1 = {fmt.bias}"
    if got == want / 2:
        return (
            "exponent field 0 belongs to the subnormals, so the smallest normal number has field 1: its exponent is 1 "
            f"− bias, with a bias of {bias}"
        )
    if got == 2 * want:
        return f"the bias is one too small: it is {bias}"
    if got == fmt.smallest_subnormal:
        return "that is the smallest subnormal: a normal number has its hidden 1"
    if got == 4 * want or got == want / 4:
        return f"the bias is wrong: it is {bias}"
    return f"it is the hidden 1 alone, at exponent field 1: 2^(1 − bias), and the bias follows from the width, {bias}"


_RULES = {
    "ieee": "an exponent field of all ones holds inf and NaN and no numbers",
    "fn": "only the pattern of all ones is NaN and there is no inf, so the last exponent field holds numbers but for "
    "its last significand",
    "finite": "no pattern is special, so the very last one is a number",
}


def _by_another_rule(fmt: FloatFormat, got: float) -> str | None:
    """Say which other rule gives this maximum: 240 for E4M3 → the IEEE one."""
    others: tuple[Specials, ...] = ("ieee", "fn", "finite")
    for kind in others:
        if kind != fmt.specials and got == FloatFormat.of(fmt.exponent_bits, fmt.significand_bits, kind).max:
            return f"that would be so under the rule “{kind}”. In “{fmt.specials}” {_RULES[fmt.specials]}"
    return None
