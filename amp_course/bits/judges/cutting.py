"""Judge bf16 by bits: a value where cutting off 16 bits of fp32 differs from rounding, and the cut mended."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from amp_course.bits.formats import BF16, FP32
from amp_course.checking import Wrong
from amp_course.checking.asking import ask, number, show

_LOW = FP32.bits - BF16.bits  # the bits that go
_HALF = 2 ** (_LOW - 1)  # the tie, in steps of fp32's last place
_KEYS = ("differs", "to_bf16")
_DRAWN = 100_000
_INF = (BF16.max_pattern + 1) << _LOW  # fp32's pattern of inf, whose upper half is bf16's


def judge(answer: Any) -> None:
    """`{"differs": a number, "to_bf16": a function of a float32 tensor}`, against torch's own cast."""
    if not isinstance(answer, Mapping) or set(answer) != set(_KEYS):
        raise Wrong(f"the check takes a dict with the keys {' and '.join(_KEYS)}, as the cell was written")
    _about_value(answer["differs"])
    function = answer["to_bf16"]
    if not callable(function):
        raise Wrong(
            f"to_bf16 is a function, and yours is a {type(function).__name__}: write its name without parentheses"
        )
    for place, patterns in _places().items():
        x = floats(patterns)
        _compare(place, x, ask(function, f"a float32 tensor with the pattern {patterns[0]:#010x} in it", x.clone()))
    _about_shapes(function)


def cut(x: Tensor) -> Tensor:
    """Keep the upper 16 bits of each float32: 1.01 → 1.0078125, as bfloat16."""
    return (x.view(torch.int32) >> _LOW).to(torch.int16).view(torch.bfloat16)


def floats(patterns: np.ndarray) -> Tensor:
    """Return the float32 numbers of uint32 patterns."""
    return torch.from_numpy(patterns.astype(np.uint32).view(np.float32))


def _about_value(given: Any) -> None:
    if isinstance(given, str):
        raise Wrong(f"`differs` is the text {given!r}: write a number, without quotes")
    value = number(given, "`differs`")
    with np.errstate(over="ignore"):
        x = torch.tensor([np.float32(value)])
    if not torch.isfinite(x).all():
        raise Wrong(f"`differs` is {value!r}, and the task asks for a number that float32 holds")
    cut_off, rounded = cut(x), x.to(torch.bfloat16)
    if not torch.equal(cut_off, rounded):
        return
    low = int(x.view(torch.int32).item()) % 2**_LOW
    if low == 0:
        cause = "its lower 16 bits are all 0, so bf16 holds it exactly"
    elif low == _HALF:
        cause = "it is a tie, and what is left after the cut ends in 0, where rounding to even goes too"
    else:
        cause = (
            f"its lower 16 bits are {low:#06x}, less than half of a step, {_HALF:#06x}, so the value below is the "
            "nearest"
        )
    raise Wrong(
        f"cutting and rounding bring {show(value)} both to {show(rounded.item())}: {cause}. Look for more than half a "
        "step"
    )


def _places() -> dict[str, np.ndarray]:
    """fp32 patterns, kind of place by kind of place: one example in front, then drawn ones."""
    draw = np.random.default_rng()

    def drawn(low: int, high: int, count: int = 400) -> np.ndarray:
        return draw.integers(low, high, count)

    sign, one = 2 ** (FP32.bits - 1), FP32.bias << FP32.significand_bits
    upper = drawn(2**BF16.significand_bits, BF16.max_pattern) << _LOW  # normal numbers that bf16 has
    above, below, tiny = drawn(_HALF + 1, 2**_LOW), drawn(1, _HALF), drawn(1, 2**FP32.significand_bits)
    nan = np.concatenate([drawn(_INF + 1, sign), drawn(_INF + 1, _INF + _HALF), drawn(sign - _HALF, sign)])
    ties = np.concatenate([[one + _HALF, one + 3 * _HALF], upper + _HALF])
    return {
        "exact": np.append(one, upper),
        "above half": np.append(one + 2**_LOW - 1, upper + above),
        "below half": np.append(one + 1, upper + below),
        "tie": ties,
        "negative": np.append(one + 2**_LOW - 1, np.concatenate([upper, upper + above, upper + below, ties])) | sign,
        "zero": np.array([0, sign]),
        "subnormal": np.concatenate([[3 * 2**_LOW, 3 * _HALF, _HALF], tiny, tiny | sign]),
        "top": np.array([_INF - 1, _INF - _HALF, _INF - _HALF - 1, _INF, (_INF - 1) | sign, _INF | sign]),
        "NaN": np.concatenate([[_INF + 1, sign - 1, 2 * sign - 1], nan, nan | sign]),
        "any": drawn(0, 2**FP32.bits, _DRAWN),
    }


def _compare(place: str, x: Tensor, got: Any) -> None:
    want = x.to(torch.bfloat16)
    if got is None:
        raise Wrong("your function returned None: give the tensor back with `return`")
    if not isinstance(got, Tensor):
        raise Wrong(f"your function returned a {type(got).__name__}, not a tensor")
    if got.shape != x.shape:
        raise Wrong(
            f"your function returned the shape {tuple(got.shape)} for the shape {tuple(x.shape)}: one result for each "
            "number"
        )
    if not got.is_floating_point():
        raise Wrong(
            f"your function returned {str(got.dtype).removeprefix('torch.')}, the patterns perhaps: end with "
            "`.to(torch.int16).view(torch.bfloat16)`, which reads the same bits as numbers"
        )
    if got.dtype != torch.bfloat16:
        name = str(got.dtype).removeprefix("torch.")
        raise Wrong(f"your function returned {name}, and the task asks for bfloat16: 16 bits are the point of it")
    ours, right = got.view(torch.int16), want.view(torch.int16)
    bad = (ours != right) & ~(got.isnan() & want.isnan())
    if bad.any():
        at = int(bad.nonzero()[0])
        pattern = int(x[at].view(torch.int32).item()) % 2**FP32.bits
        raise Wrong(
            f"{show(x[at].item())}, the fp32 pattern {pattern:#010x}, came out as {show(got[at].item())} instead of "
            f"{show(want[at].item())}: {_mistake(place, pattern, x[at], got[at], want[at])}"
        )


def _mistake(place: str, pattern: int, x: Tensor, got: Tensor, want: Tensor) -> str:
    if place == "NaN":
        return _nan(pattern, got)
    size, right, low = abs(got.item()), abs(want.item()), pattern % 2**_LOW
    if size == right:
        return "the sign got lost: it is the first of the bits that are kept, and it has to come through, for −0.0 too"
    if place == "top":
        return _top(size)
    if place == "subnormal" and size == 0:
        return "a subnormal was flushed to zero: its bits are cut and rounded like all others"
    if low == 0:
        return "its lower 16 bits are 0, so there is nothing to round"
    lost = f"the lower 16 bits are {low:#06x}"
    if torch.equal(got, cut(x.reshape(1))[0]):
        if place == "negative":
            return (
                f"a negative number was only cut. {lost.capitalize()}, and numbers are rounded on both sides of zero "
                "alike"
            )
        if low == _HALF:
            return f"{lost}, a tie, and what is left ends in 1: a tie goes to the even neighbour, away from zero here"
        return (
            f"it was only cut. {lost.capitalize()}, more than half of a step, {_HALF:#06x}, so the next value is nearer"
        )
    if low == _HALF:
        return (
            f"{lost}, a tie, and it went up: a tie goes to the neighbour whose pattern ends in 0, which is the one "
            "below here"
        )
    if low < _HALF and size > right:
        return f"{lost}, less than half of a step, {_HALF:#06x}: the value below is nearer"
    return f"{lost} of a step of 0x10000: that is {'more' if low > _HALF else 'less'} than half"


def _nan(pattern: int, got: Tensor) -> str:
    if got.isinf().item() and pattern % 2**_LOW and (pattern >> _LOW) % 2 ** (BF16.bits - 1) == BF16.max_pattern + 1:
        return (
            "NaN became inf. All that made it a NaN stood in the lower 16 bits, and rounding took them off. Look for "
            "NaN first (`x.isnan()`) and put a NaN there"
        )
    if got.item() == 0:
        return (
            "NaN became zero. Adding to a significand of all ones carried through the exponent into the sign. Look "
            "for NaN first (`x.isnan()`) and put a NaN there"
        )
    return "NaN became a number: the carry of rounding ran through its bits. Look for NaN first (`x.isnan()`)"


def _top(size: float) -> str:
    if math.isnan(size):
        return "inf has the exponent field of all ones and a significand of 0; NaN is the one with something else there"
    if size == BF16.max:
        return (
            f"it was held back at the largest number. From half a step past {BF16.max:.4g} on, rounding to nearest "
            "gives inf; the carry into the exponent already does that"
        )
    return (
        "here the carry of rounding may run into the exponent field of all ones, which is inf with a significand of 0"
    )


def _about_shapes(function: Callable[..., Any]) -> None:
    """Two dimensions, nothing at all; and the tensor that was given stays as it was."""
    x = floats(np.random.default_rng().integers(0, _INF, 12, dtype=np.uint32)).reshape(3, 4)
    for given in (x, x[:0]):
        before, shown = given.clone(), f"a tensor of shape {tuple(given.shape)}"
        got = ask(function, shown, given)
        if not isinstance(got, Tensor) or got.shape != given.shape:
            raise Wrong(f"{shown} came back as another: rounding leaves the shape as it is")
        if not torch.equal(given, before):
            raise Wrong(
                "your function changed the tensor that it was given: `view` shares its memory, so an operation in "
                "place (`+=`, `add_`) on the bits writes into x. Add with `+`, which makes a new tensor"
            )
