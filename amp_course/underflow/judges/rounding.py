"""Judge what rounding does: the smallest step from 1, and the share of each zone."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from amp_course.bits.formats import BF16, FP8_E5M2, FP16, FP32, FP64, FloatFormat, find_format
from amp_course.checking import Wrong
from amp_course.checking.asking import number
from amp_course.checking.values import fresh
from amp_course.underflow.zones import ZONES

_SIXTEEN = (torch.float16, torch.bfloat16)
_CLOSE = 1e-5  # how far a fraction may be off: less than one of the drawn numbers


def judge_smallest_step(answer: Callable[..., Any]) -> None:
    """`smallest_step(dtype)` → the smallest positive x of the dtype for which 1 + x, in that dtype, is not 1."""
    swapped = bool(torch.randint(2, (), generator=fresh()))
    for dtype in (*_SIXTEEN[:: -1 if swapped else 1], torch.float32, torch.float64):
        with _without_finfo():
            got = number(answer(dtype), str(dtype).removeprefix("torch."))
        _compare_step(got, dtype)


def _compare_step(got: float, dtype: torch.dtype) -> None:
    fmt = find_format(dtype)
    one, x = torch.tensor(1.0, dtype=dtype), torch.tensor(got, dtype=dtype)
    below = torch.nextafter(x, torch.zeros_like(x))
    if got > 0 and x.item() == got and one + x != one and one + below == one:
        return
    name, gap = str(dtype).removeprefix("torch."), f"2^−{fmt.significand_bits}"
    half = f"2^−{fmt.significand_bits + 1}"
    if got == fmt.eps:
        raise Wrong(
            f"for {name} your x is {gap}, which is the gap between 1 and the next number. A smaller x does it too: a sum just "
            f"past the middle of the gap is rounded up. Look right above {half}"
        )
    if got == fmt.eps / 2:
        raise Wrong(
            f"for {name} your x is {half}, and 1 + x lies exactly between 1 and the next number: the tie goes to the even "
            "one, which is 1. The next larger x is the one (`torch.nextafter`)"
        )
    if got > 1:
        raise Wrong(f"for {name} you returned {got:.10g}: that looks like the sum 1 + x, and x itself is asked for")
    if got <= 0 or got != got:
        raise Wrong(f"for {name} you returned {got:g}, and x is positive: keep the last one for which 1 + x was not 1")
    if got == fmt.smallest_subnormal:
        raise Wrong(
            f"for {name} you returned its smallest positive number, and 1 + that is 1: the question is not how small x can "
            "be, but how small it can be and still move 1"
        )
    for other in (FP64, FP32, FP16):
        if other.dtype != dtype and got in (other.eps, other.eps / 2, (1 + other.eps) * other.eps / 2):
            raise Wrong(
                f"for {name} you returned what belongs to {other.name}: 1 and x both have to be tensors of the dtype that was "
                "handed in. Python's own numbers are float64"
            )
    if x.item() != got:
        raise Wrong(f"for {name} you returned {got!r}, which is no number of {name}: the nearest is {x.item()!r}")
    if one + x == one:
        raise Wrong(f"for {name} you returned {got!r}, and 1 + that is still 1 in {name}")
    raise Wrong(f"for {name} you returned {got!r}, and a smaller x moves 1 too, such as {below.item()!r}")


@contextmanager
def _without_finfo() -> Iterator[None]:
    """Let nobody but torch itself ask torch.finfo."""
    finfo = torch.finfo

    def refuse(*arguments: Any) -> Any:
        if sys._getframe(1).f_globals.get("__name__", "").startswith("torch"):
            return finfo(*arguments)
        raise Wrong("your function asks `torch.finfo`: find x by adding, that is the exercise")

    torch.finfo = refuse  # type: ignore[assignment, misc]
    try:
        yield
    finally:
        torch.finfo = finfo  # type: ignore[misc]


def judge_lost_fraction(answer: Callable[..., Any]) -> None:
    """`lost_fraction(tensor, fmt)` → {zone: fraction of the numbers that were not zero before}."""
    for fmt in (FP16, FP8_E5M2, BF16):
        tensor = _numbers_of_all_zones(fmt)
        before = tensor.clone()
        got = answer(tensor, fmt)
        if not torch.equal(tensor, before):
            raise Wrong("your function changed the tensor that was handed in: work on a copy")
        if got is None:
            raise Wrong("your function returned None: return the dict of four fractions")
        if not isinstance(got, Mapping) or not set(ZONES) <= set(got):
            raise Wrong(f"the answer is a dict with the keys {', '.join(ZONES)}")
        given = {zone: number(got[zone], f"the fraction “{zone}”") for zone in ZONES}
        _compare_zones(given, tensor, fmt)


def _numbers_of_all_zones(fmt: FloatFormat) -> Tensor:
    """Draw (2, n): all zones, both signs, zeros, and the numbers beside the limits that only rounding decides."""
    generator = fresh()
    tiny, normal = fmt.smallest_subnormal, fmt.smallest_normal
    step = 2.0 ** (fmt.max_exponent - fmt.significand_bits)

    def between(low: float, high: float, about: int) -> Tensor:
        count = about + int(torch.randint(25, (), generator=generator))
        return low + (high - low) * torch.rand(count, dtype=torch.float64, generator=generator)

    # How many there are of each kind differs by more than the draw, so that no mistake gives another one's fraction.
    sizes = torch.cat(
        [
            between(0.05, 0.45, 200) * tiny,
            between(0.55, 0.95, 250) * tiny,  # nearer to the smallest number than to 0: not lost
            between(tiny * 1.1, normal - tiny, 300),
            between(normal, fmt.max, 350),
            fmt.max + between(0.05, 0.45, 100) * step,  # nearer to the largest number: no overflow
            fmt.max * between(1.5, 9.0, 150),
            between(0.0, 0.0, 50),
        ]
    )
    sizes = sizes[torch.randperm(len(sizes), generator=generator)[: len(sizes) // 2 * 2]]
    signs = torch.where(torch.rand(len(sizes), generator=generator) < 0.4, -1.0, 1.0)
    return (sizes * signs).float().view(2, -1)


def _compare_zones(got: dict[str, float], tensor: Tensor, fmt: FloatFormat) -> None:
    there = tensor[tensor != 0]
    assert fmt.dtype is not None
    rounded = there.to(fmt.dtype).float()
    small, big = there.abs(), rounded.abs()
    # torch's own cast decides.
    truth = {
        "lost": big == 0,
        "subnormal": (big > 0) & (big < fmt.smallest_normal),
        "normal": (big >= fmt.smallest_normal) & big.isfinite(),
        "overflow": ~big.isfinite(),
    }
    n, everything = len(there), tensor.numel()
    zeros, right = everything - n, {zone: float(mask.float().mean()) for zone, mask in truth.items()}
    lost, subnormal = right["lost"], right["subnormal"]
    finfo_lost = float((small < fmt.smallest_subnormal).float().mean())
    # For each zone: a fraction that is wrong → what leads to it.
    mistakes: dict[str, list[tuple[float, str]]] = {
        "lost": [
            (lost + zeros / n, "it counts the zeros that were zero before: rounding lost nothing there"),
            ((lost * n + zeros) / everything, "it counts the zeros that were zero before: rounding lost nothing there"),
            (lost + subnormal, "it calls subnormals lost: they have fewer digits, and they are not 0"),
            (
                finfo_lost,
                f"it compares with the smallest number, {fmt.smallest_subnormal:g}: what is nearer to that than to 0 is "
                "rounded up to it. Round first, and see what became 0",
            ),
            (
                float((rounded < fmt.smallest_subnormal).float().mean()),
                "it compares the numbers with their signs, and so counts every negative one: take `.abs()` first",
            ),
        ],
        "subnormal": [
            (subnormal + lost, "it counts what is lost as well: a subnormal number is not 0"),
            (
                float(((small < fmt.smallest_normal) & (small >= fmt.smallest_subnormal)).float().mean()),
                f"it leaves out what is rounded up to the smallest number, {fmt.smallest_subnormal:g}: round first",
            ),
            (
                float(((rounded > 0) & (rounded < fmt.smallest_normal)).float().mean()),
                "it leaves the negative ones out: take `.abs()` first",
            ),
        ],
        "normal": [
            (
                right["normal"] + subnormal,
                "it counts the subnormal ones as well: normal begins at `fmt.smallest_normal`",
            ),
            (
                float((rounded >= fmt.smallest_normal).logical_and(rounded.isfinite()).float().mean()),
                "it leaves the negative ones out: take `.abs()` first",
            ),
        ],
        "overflow": [
            (
                float((small > fmt.max).float().mean()),
                f"it compares with the largest number, {fmt.max:g}: what is less than half a step past it is rounded back to "
                "it. Round first, and see what is inf",
            ),
            (0.0, "an overflow comes out as inf, and not as NaN: ask for `rounded.isinf()`"),
            (float((rounded > fmt.max).float().mean()), "it leaves the negative ones out: take `.abs()` first"),
        ],
    }
    for zone in ZONES:
        value, wanted = got[zone], right[zone]
        if abs(value - wanted) <= _CLOSE:
            continue
        where = f"in {fmt.name} the fraction “{zone}” is {wanted:.4f}, and yours is {value:.4f}: "
        if abs(value - 100 * wanted) <= 100 * _CLOSE:
            raise Wrong(f"{where}a fraction goes from 0 to 1, and this is in percent")
        if abs(value - wanted * n) < 0.5:
            raise Wrong(f"{where}this is how many there are: divide by how many were not zero before")
        if abs(value - wanted * n / everything) <= _CLOSE:
            raise Wrong(
                f"{where}you divide by all numbers, those that were zero before among them: divide by the others alone"
            )
        known = next((why for other, why in mistakes[zone] if abs(value - other) <= _CLOSE), None)
        raise Wrong(where + (known or "round with `round_to(tensor, fmt)`, then look at the sizes that came out"))
