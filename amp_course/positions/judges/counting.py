"""Judge the counting of positions: the first collision, and the number of distinct ids."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from amp_course.bits.formats import BF16, FP8_E5M2, FP16, FloatFormat
from amp_course.bits.numerals import raised
from amp_course.bits.rounding import binade, round_to
from amp_course.checking import Wrong
from amp_course.checking.asking import ask, number, show
from amp_course.positions.counting import distinct_positions

_FAR = 70_000  # positions that are counted one by one, past fp16's end
_SLOW = 0.03  # seconds: a formula takes microseconds


def judge_collision(answer: Callable[..., Any]) -> None:
    """`first_collision(significand_bits)` → the smallest shared position, against rounding every position."""
    draw = random.Random()
    for bits in (BF16.significand_bits, FP16.significand_bits, *draw.sample(range(1, 17), 6)):
        want = collision_by_rounding(FloatFormat.of(8, bits))
        got = number(ask(answer, f"{bits} significand bits", bits), f"{bits} significand bits")
        if got != want:
            raise Wrong(f"with {bits} significand bits {show(got)} is not the first collision: {_why(got, bits, want)}")


def collision_by_rounding(fmt: FloatFormat) -> int:
    """Return the first position that rounds to its predecessor's value, by rounding them all: bf16 → 257."""
    ids = round_to(torch.arange(2 ** (fmt.significand_bits + 2), dtype=torch.float64), fmt)
    return 1 + int((ids[1:] == ids[:-1]).int().argmax())


def _why(got: float, bits: int, want: int) -> str:
    last = want - 1
    if got == BF16.eps**-1 * 2 + 1:
        return "it is so for bf16 only, and the number of bits is your function's argument"
    if got in (2**bits, 2**bits + 1):
        return (
            f"a number has a hidden 1 before its {bits} stored bits, so {bits + 1} digits in all: count powers of two "
            "with one digit more"
        )
    if got == last:
        return f"{last:,} is a power of two, which every format holds; it is the next one that is rounded onto it"
    if got == want + 1:
        return (
            f"{want + 1:,} is even and has a value of its own. Right below it, {want:,} lies halfway and goes to even"
        )
    if got < last and got == int(got):
        return f"every integer up to {last:,} fits in {bits + 1} digits, so {show(got)} is exact"
    if got in (2 * last, 2 * last + 1):
        return f"the digits are the {bits} stored bits and one hidden 1, not two"
    return f"the integers are exact as long as {bits + 1} binary digits, hidden 1 included, can write them"


def judge_count(answer: Callable[..., Any]) -> None:
    """`distinct_ids(n, fmt)` → how many values n positions have, against rounding them all; and without a tensor."""
    draw = random.Random()
    own = FloatFormat.of(draw.randint(6, 8), draw.randint(3, 9))
    for fmt in (BF16, own, FP16, FP8_E5M2):
        table = Table(fmt)
        for n in _lengths(fmt, draw, 400):
            _compare(answer, n, fmt, table)
    _check_speed(answer)
    for fmt in (BF16, own, FP16, FP8_E5M2):
        table = Table(fmt)
        for n in _lengths(fmt, draw, _FAR):
            _compare(answer, n, fmt, table)
    for fmt in (BF16, FP16):
        for n in (2**17, 2**30, 2**40, 2**40 + draw.randint(1, 2**39)):
            _compare(answer, n, fmt, None)


class Table:
    """The number of distinct ids for every length to _FAR, by rounding every position; and as some mistakes count them."""

    def __init__(self, fmt: FloatFormat) -> None:
        positions = torch.arange(_FAR, dtype=torch.float64)
        endless = FloatFormat.of(8, fmt.significand_bits)  # the same digits with a range that does not end here
        step = binade(positions, endless) * fmt.eps
        self.right = _counts(round_to(positions, fmt))
        self.mistakes = {
            "endless": _counts(round_to(positions, endless)),
            "truncated": _counts((positions / step).floor() * step),
            "half up": _counts((positions / step + 0.5).floor() * step),
        }

    def mistaken(self, n: int, got: float) -> str:
        """Name the mistake that gives this count, or return ""."""
        return next((name for name, counts in self.mistakes.items() if n and counts[n - 1] == got), "")


def _counts(ids: Tensor) -> Tensor:
    is_new = torch.ones(len(ids), dtype=torch.int64)
    is_new[1:] = ids[1:] != ids[:-1]
    return is_new.cumsum(0)


def _lengths(fmt: FloatFormat, draw: random.Random, limit: int) -> list[int]:
    """Return lengths to `limit`: small ones, those around powers of two, around the end of the range, drawn ones."""
    powers = [2**power for power in range(1, limit.bit_length())]
    around = [power + off for power in powers for off in (0, 1, 2, 3, 4, -1)]
    ends = [int(fmt.max) + off for off in (0, 1, 2, 15, 16, 17, 18, 1000)] if fmt.max < limit else []
    drawn = [draw.randint(1, limit) for _ in range(30)]
    # These first: right after 2^p several mistakes give the same count, at its sixth successor they do not.
    telling = 2 ** (fmt.significand_bits + 1) + 6
    return [0, 1, telling, *drawn, *(n for n in sorted([*around, *ends]) if 0 <= n <= limit)]


def _compare(answer: Callable[..., Any], n: int, fmt: FloatFormat, table: Table | None) -> None:
    shown = f"n = {_count(n)} in {fmt.name}"
    got = number(ask(answer, shown, n, fmt), shown)
    want = distinct_positions(n, fmt) if table is None or not n else int(table.right[n - 1])
    if got != want:
        raise Wrong(f"for {shown} you count {show(got)}, and it is {want:,}: {_miscount(got, want, n, fmt, table)}")


def _miscount(got: float, want: int, n: int, fmt: FloatFormat, table: Table | None) -> str:
    exact, past = 2 ** (fmt.significand_bits + 1), n > fmt.max + 1
    mistake = table.mistaken(n, got) if table else ""
    if n == 0:
        return "no tokens have no ids"
    if past and got == want - 1:
        return "the positions past the range all become inf. That is one more id, which they share"
    if past and (mistake == "endless" or got > want):
        return (
            f"{fmt.name} ends at {fmt.max:,.0f}, and the half step after it becomes inf: from there on all tokens share "
            "that one id"
        )
    if got == n:
        return f"beyond {exact:,} the numbers stand further apart than 1, so tokens begin to share"
    if mistake == "truncated":
        return (
            "you count what cutting digits off would leave. A cast rounds to the nearest, and a tie to the even "
            f"neighbour, so the last token, {n - 1:,}, may reach the next value up"
        )
    if mistake == "half up":
        return f"ties go to the neighbour with an even significand, not always up: where does {n - 1:,} go?"
    if abs(got - want) == 1:
        return (
            f"off by one. The positions are 0 … n − 1, so the last is {n - 1:,}; {exact:,} itself is exact; and at each "
            "power of two the spacing doubles"
        )
    return (
        f"up to {exact:,} each has its own; then every binade, from a power of two to the next, holds "
        f"{exact // 2:,} values"
    )


def _check_speed(answer: Callable[..., Any]) -> None:
    for n in (2**16, 2**22):
        seconds = min(_seconds(answer, n), _seconds(answer, n))  # another program may slow one of them
        if seconds > _SLOW:
            raise Wrong(
                f"it took {seconds:.2g} s for {_count(n)} tokens, so it goes through them one by one, in a loop or a "
                f"tensor. {_count(2**40)} tokens would take {seconds * 2**40 / n / 3600:,.0f} hours, and a tensor of them "
                "terabytes: use that each binade holds the same number of values"
            )


def _seconds(answer: Callable[..., Any], n: int) -> float:
    start = time.perf_counter()
    ask(answer, f"n = {_count(n)} in bf16", n, BF16)
    return time.perf_counter() - start


def _count(n: int) -> str:
    power = n.bit_length() - 1
    return f"2{raised(power)}" if n >= 2**16 and n == 2**power else f"{n:,}"
