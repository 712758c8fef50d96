"""Exercise 2 of chapter 03: how many values a format has for the positions 0 … n−1."""

import random
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from amp_course.bits.formats import BF16, FP8_E5M2, FP16, FloatFormat
from amp_course.checking import Card, Case, Exercise, Mistake, Results, call_answer, read_number

card = Card(
    chapter="positions",
    name="count_ids",
    number=2,
    title="Count the distinct ids",
    difficulty=4,
    importance=3,
    minutes=20,
    lines=10,
    task="Write `count_ids(n, fmt)`: how many different values the positions 0 … n−1 have in a "
    "format. Do not go through the positions one by one, in a loop or in a tensor: the check tries "
    "n = 2^40. All positions that overflow to inf share one id, which counts too.",
    hints=(
        "How many bf16 numbers are there from 256 up to, but not including, 512? And from 512 to "
        "1,024? Look at the spacing.",
        "With p = `fmt.significand_bits` + 1, every integer up to 2^p (or to a smaller `fmt.max`) "
        "has its own id. Each later binade, from a power of two to the next, holds 2^(p−1) values. "
        "Which value does the last position, n − 1, round to?",
        "The spacing at n − 1 is `step = 2 ** ((n - 1).bit_length() - p)`. `round(Fraction(n - 1, "
        "step))` counts the steps up to it, ties to even as in a cast. Add 2^(p−1) values for each "
        "binade before. From half a step past `fmt.max` on, positions become inf, which is one "
        "more value than there are up to `fmt.max`.",
    ),
    why="The count grows with the logarithm of the length: bf16 has 1,409 ids for 131,072 tokens.",
    alternative="positive numbers are in the same order as their patterns, so `encode(n - 1, fmt) "
    "- encode(2**p, fmt)` counts the values past 2^p, inf included.",
)


def right(n: int, fmt: FloatFormat) -> int:
    bits, half_step = fmt.significand_bits + 1, 2 ** (fmt.max_exponent - fmt.significand_bits) // 2
    last, most = n - 1, int(fmt.max)
    exact = min(2**bits, most + 1)  # up to here, every position has its own id
    if n <= exact + 1 or most < exact:  # in a short format, positions from most + 1 on are inf
        return min(n, exact + 1)
    overflows = int(last >= most + half_step)  # inf is one more id
    last = min(last, most)
    binade = last.bit_length() - 1
    steps = Fraction(last, 2 ** (binade - fmt.significand_bits))
    in_binade = round(steps) - exact // 2  # ties to even
    before = exact // 2 * (binade - bits)  # the ids of the binades between
    return 1 + exact + before + in_binade + overflows


LONG = 2**21  # positions; loops over a sixteenth are noticed, those over all bf16 patterns are not
LIBRARIES = str(Path(__file__).parents[2]), str(Path(random.__file__).parent)


class _Stopped(BaseException):
    """Ends an answer that goes through the positions; its text says how."""


class _Watch(TorchFunctionMode):
    """Stops an answer that runs about as many lines, or makes about as large tensors,
    as there are positions.
    """

    lines = elements = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        size = out.numel() if isinstance(out, torch.Tensor) else 0
        self.elements += size
        if size >= LONG // 2 or self.elements > 4 * LONG:
            raise _Stopped("in memory" if size >= LONG // 2 else "in chunks")
        return out

    def trace(self, frame: Any, *event: Any) -> Any:
        if frame.f_code.co_filename.startswith(LIBRARIES) and frame.f_code.co_filename != __file__:
            return None
        self.lines += 1
        if self.lines > LONG // 16:
            raise _Stopped("in a loop")
        return self.trace


def _way(answer: Callable[..., Any], case: str, n: int) -> str:
    """Say how an answer counts, by the lines that it runs, its tensors and its memory;
    time does not matter.
    """
    watch, traced = _Watch(), sys.gettrace()
    tracemalloc.start()
    try:
        with watch:
            sys.settrace(watch.trace)
            call_answer(answer, case, n, BF16)
    except _Stopped as stopped:
        return str(stopped)
    finally:
        sys.settrace(traced)
        memory = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return "in memory" if memory >= 4 * LONG else "by a formula"


def cases(answer: Callable[..., Any], draw: random.Random) -> Iterator[Case]:
    """Small counts; whether the answer goes through the positions; large counts; overflow."""
    few = [0, 1, 2, *range(255, 272), *range(511, 520)]
    yield Case("", {"the count": _counts(answer, few, BF16)})
    for n in (LONG, 2**40):
        case = f"for n = {n:,} in bf16"
        yield Case(case, {"the way it counts": (way := _way(answer, case, n))})
        if way != "by a formula":
            return
    for fmt, few in ((FloatFormat.of(8, 3), [*range(70), 129]), (FP8_E5M2, [*range(40)])):
        yield Case("", {"the count": _counts(answer, few, fmt)})

    many = [2**p + off for p in (*range(4, 18), 24, 40) for off in (0, 2, 3, 2**p // 4 + 1)]
    ends = int(FP16.max), int(FP8_E5M2.max)
    many += [end + off for end in ends for off in (1, 2, 16, 17, 18, 4095, 4096, 4097, 4098)]
    many += [2**p + 2 ** (p - bits) + 2 for p in (26, 30) for bits in range(5, 9)]
    many += [2**40 - 2**31, *(draw.randrange(2**41) for _ in range(3))]
    short = FloatFormat.of(4, 8)  # ends at 255.5, before 2^9
    for fmt, lengths in (
        (BF16, [LONG, 2**40]),
        (BF16, many),
        (FloatFormat.of(8, draw.randint(4, 6)), many),
        (FP16, many),
        (FP8_E5M2, many),
        (short, [*range(254, 260), 300, 513]),
        (short, [514, 515, 700, 2**20, 2**40]),
    ):
        within, past = [n for n in lengths if n <= fmt.max], [n for n in lengths if n > fmt.max]
        yield Case("", {"the count": _counts(answer, within, fmt)})
        facts = {"format": fmt.name, "end": f"{fmt.max:,.0f}"}
        yield Case("", {"the count past the largest number": _counts(answer, past, fmt)}, facts)
        if _counts(answer, lengths, fmt) != _counts(right, lengths, fmt):
            return


def _counts(answer: Callable[..., Any], lengths: list[int], fmt: FloatFormat) -> Results:
    name = f"a format with {fmt.exponent_bits} exponent and {fmt.significand_bits} significand bits"
    name = fmt.name if fmt in (BF16, FP16, FP8_E5M2) else name
    cases = {f"for n = {n:,} in {name}": n for n in lengths}
    return Results(
        {case: read_number(call_answer(answer, case, n, fmt), case) for case, n in cases.items()}
    )


LAST = "last, most = n - 1, int(fmt.max)"
OVERFLOWS = "overflows = int(last >= most + half_step)"
IN_BINADE = "in_binade = round(steps) - exact // 2"
GOES_ON = {OVERFLOWS: "overflows = 0", "last = min(last, most)": "pass"}
SHARED_INF = (
    "{format} ends at {end}. From half a step past it on, every position becomes inf, and they "
    "share one id"
)

ROUNDS_N = "you round n, which is not among the positions 0 … n − 1. The last one is n − 1"

mistakes = [
    Mistake(
        "loops over the positions",
        "your function runs over 100,000 steps for two million positions, and the check tries "
        "2⁴⁰. Count binades",
        answer=lambda n, fmt: right(n, fmt) if n < LONG else sum(1 for _ in range(n)),
        violates="Do not go through the positions one by one, in a loop",
    ),
    Mistake(
        "builds a tensor",
        "your function fills a tensor, array or set with all positions, which takes terabytes for "
        "2⁴⁰ of them. Count binades",
        answer=lambda n, fmt: right(n, fmt) if n < LONG else torch.arange(n).numel(),
        violates="or in a tensor",
    ),
    Mistake(
        "ignores the end of the range",
        SHARED_INF,
        edits=GOES_ON,
        violates="overflow to inf share one",
    ),
    Mistake(
        "the last spacing goes on past the end",
        SHARED_INF,
        edits=GOES_ON
        | {
            "binade = last.bit_length() - 1": "binade = min(last.bit_length() - 1, "
            "fmt.max_exponent)"
        },
    ),
    Mistake(
        "leaves out inf",
        "the positions past the end of {format} become inf, and that is one more id",
        edits={OVERFLOWS: "overflows = 0"},
        violates="which counts",
    ),
    Mistake(
        "overflows half a step early",
        "positions less than half a step past {end}, {format}'s largest number, are rounded to it, "
        "not to inf",
        edits={OVERFLOWS: "overflows = int(last > most)"},
    ),
    Mistake(
        "truncates",
        "a cast rounds to nearest and does not truncate, so the last position, n − 1, may reach "
        "the next value up",
        edits={IN_BINADE: IN_BINADE.replace("round", "int")},
        violates="values the positions 0 … n−1 have in a format",
    ),
    *(
        Mistake(
            f"half {way}",
            f"a tie goes to the neighbour whose significand is even, not always {way}. `round` of "
            "a Fraction does that",
            edits={IN_BINADE: f"in_binade = {rounded} - exact // 2"},
        )
        for way, rounded in {
            "up": "int(steps + Fraction(1, 2))",
            "down": "-((Fraction(1, 2) - steps) // 1)",
        }.items()
    ),
    Mistake(
        "counts position n too",
        "the positions are 0 … n − 1, and you count n as well",
        answer=lambda n, fmt: right(n + 1, fmt),
        violates="0 … n−1",
    ),
    Mistake(
        "one too few",
        "your count is 1 too low. The positions 0 … n − 1 are n positions, including 0",
        answer=lambda n, fmt: right(n, fmt) - 1,
    ),
    Mistake("n in place of n − 1", ROUNDS_N, answer=lambda n, fmt: right(n + 1, fmt) - 1),
    Mistake("n in place of n − 1, past 2^p", ROUNDS_N, edits={LAST: LAST.replace("n - 1", "n")}),
    Mistake(
        "through float32",
        "rounding twice, to float32 first, can make a tie of a number next to one. Round n − 1 "
        "only once",
        edits={LAST: LAST.replace("n - 1", "int(torch.tensor(float(n - 1)).item())")},
    ),
    Mistake(
        "every position has its own id",
        "past 2^p, with p = `fmt.significand_bits` + 1, numbers are more than 1 apart, so "
        "positions share ids",
        answer=lambda n, fmt: n,
    ),
    *(
        Mistake(
            f"stops at 2^p{and_0}",
            f"your count stops growing at 2^p{and_0}, with p = `fmt.significand_bits` + 1. Past "
            "2^p, numbers are more than 1 apart, but each binade still has 2^(p−1) more ids",
            answer=lambda n, fmt, more=more: min(n, 2 ** (fmt.significand_bits + 1) + more),
        )
        for more, and_0 in enumerate(("", " + 1"))
    ),
    Mistake(
        "forgets the hidden 1",
        "with the hidden 1 in front of the stored bits, integers are exact up to "
        "2^(`fmt.significand_bits` + 1)",
        answer=lambda n, fmt: right(n, replace(fmt, significand_bits=fmt.significand_bits - 1)),
    ),
    Mistake(
        "forgets position 0",
        "one id is missing. 0 has one too, so there are 2^p + 1 from 0 to 2^p, with p = "
        "`fmt.significand_bits` + 1",
        edits={
            "return 1 + exact + before + in_binade + overflows": "return exact + before + "
            "in_binade + overflows"
        },
    ),
    Mistake(
        "n up to 2^p before the range",
        "a format may end before 2^(`fmt.significand_bits` + 1). Positions past its end are inf, "
        "which is one id",
        edits={"exact = min(2**bits, most + 1)": "exact = 2**bits"},
    ),
]

count_ids = Exercise(
    card,
    right,
    cases,
    mistakes,
    show=lambda got: got if isinstance(got, str) else f"{got:,}".removesuffix(".0"),
    messages={
        "the way it counts": "your function counts {got}, which takes too long for 2⁴⁰ positions. "
        "Count binades instead"
    },
)
