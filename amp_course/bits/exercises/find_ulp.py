"""Exercise 3 of chapter 01: the gap between the numbers of any format."""

import math
import random
from collections.abc import Iterator
from typing import Any

from amp_course.bits import (
    BF16,
    FP4_E2M1,
    FP6_E3M2,
    FP8_E4M3,
    FP8_E5M2,
    FP16,
    FP32,
    FloatFormat,
    decode,
    encode,
)
from amp_course.checking import (
    Card,
    Case,
    Exercise,
    Mistake,
    Results,
    call_answer,
    read_number,
    show_number,
)

card = Card(
    chapter="bits",
    name="find_ulp",
    number=3,
    title="How far to the next number?",
    difficulty=3,
    importance=5,
    minutes=10,
    lines=4,
    task="Write `find_ulp(x, fmt)`: return the gap between neighbouring numbers at |x|, for any "
    "format `fmt`, whatever its widths and bias, and any |x| below its largest number, 0 "
    "included. If |x| is itself a number of the format, return the gap above it.",
    hints=(
        "At 1 the gap is eps. What is it at 2, at 4, at ½? And where does the halving stop?",
        "Find the exponent of the power of two at or below |x|. `math.frexp` splits a float "
        "without rounding; `math.floor(math.log2(x))` can be one too high just below a power of "
        "two.",
        "With `n = max(math.frexp(abs(x))[1] - 1, fmt.min_exponent)`, but the minimum for 0, it "
        "is 2^(n − fmt.significand_bits).",
    ),
    why="Add less than half of this gap to a number and the number doesn't change: chapter 02 is "
    "built on that.",
    alternative="`max(math.frexp(x)[1] - 1, fmt.min_exponent)` of |x|, with a case for 0. For "
    "float64 Python has `math.ulp`, and for its own types, float16 among them, NumPy has "
    "`np.spacing`.",
)

FORMATS = (
    *(FP16, BF16, FP8_E4M3, FP8_E5M2, FP32, FP6_E3M2, FP4_E2M1, FloatFormat.of(6, 9)),
    FloatFormat("E4M3 with bias 11", 4, 3, 11, "fn"),
    FloatFormat("E5M42 with bias 1023", 5, 42, 1023),
    FloatFormat.of(1, 3, "finite"),
)


def right(x: float, fmt: FloatFormat) -> float:
    size = max(abs(x), fmt.smallest_normal)  # below, the gap stays what it is there
    exponent = math.frexp(size)[1] - 1
    return math.ldexp(1.0, exponent - fmt.significand_bits)


def kinds(fmt: FloatFormat, draw: random.Random) -> dict[str, list[float]]:
    """Return numbers of each kind in a format, in the order in which they are best understood."""
    low, high, tiny = fmt.min_exponent, fmt.max_exponent, fmt.smallest_normal
    powers = [2.0**n for n in (0, 1, -2, high, low, draw.randint(low, high)) if low <= n <= high]
    normal = [power * size for power in powers for size in (1.5, 1.0, 1.25, 1.4)]
    normal = [x for x in normal if tiny < x < fmt.max]
    below = [x for one in powers for x in (one * (1 - fmt.eps / 8), math.nextafter(one, 0))]
    subnormal = [tiny * part for part in (fmt.eps, max(0.5, 1 - fmt.eps), 0.3)]
    return {
        "positive normal numbers": normal,
        "negative normal numbers": [-x for x in normal],
        "numbers just below a power of two": [x for x in below if x > tiny],
        "subnormals": [x for size in (*subnormal, tiny) for x in (size, -size)],
        "zeros": [0.0, -0.0],
    }


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """Take one kind of number after the other, each in all formats."""
    numbers = {fmt: kinds(fmt, draw) for fmt in FORMATS}
    for kind in numbers[FP16]:
        found = Results()
        for fmt in FORMATS:
            for x in numbers[fmt][kind]:
                case = f"for {min(show_number(x), repr(x), key=len)} in {fmt.name}"
                found[case] = read_number(call_answer(answer, case, x, fmt), case)
        yield Case("", {kind: found})


SIZE, EXPONENT = "size = max(abs(x), fmt.smallest_normal)", "exponent = math.frexp(size)[1] - 1"
RETURN = "return math.ldexp(1.0, exponent - fmt.significand_bits)"
CLAMPED = "exponent = max(math.frexp(size)[1] - 1, fmt.min_exponent)"
LOG = "exponent = max(math.floor(math.log2(size)), fmt.min_exponent)"

mistakes = [
    Mistake(
        "constant eps",
        "you return eps for every x. The gap doubles at each power of two",
        edits={RETURN: "return fmt.eps"},
    ),
    Mistake(
        "eps · |x|",
        "your gap grows with every x. It is eps times the power of two at or below |x|",
        edits={RETURN: "return size * fmt.eps"},
    ),
    Mistake(
        "twice as wide",
        "your gap is doubled. Is your exponent that of 1.m, and do all stored bits count?",
        edits={EXPONENT: "exponent = math.frexp(size)[1]"},
    ),
    Mistake(
        "exponent cut to an int",
        "below 1, your exponent is rounded towards zero, as `int` does. Use `math.frexp`",
        edits={EXPONENT: "exponent = int(math.log2(size))"},
    ),
    Mistake(
        "exponent rounded up",
        "between powers of two your gap is doubled. Round the exponent down, as "
        "`math.frexp(x)[1] - 1` does",
        edits={EXPONENT: "exponent = math.ceil(math.log2(size))"},
    ),
    Mistake(
        "hidden 1 counted",
        "your gap is halved. M stored bits make 2^M steps to the next power of two",
        edits={RETURN: "return math.ldexp(1.0, exponent - fmt.significand_bits - 1)"},
    ),
    Mistake(
        "fp16 only",
        "you return fp16's gap for every format. Use `fmt.significand_bits` and `fmt.min_exponent`",
        answer=lambda x, fmt: right(x, FP16),
        violates="any format",
    ),
    Mistake(
        "fp16's range",
        "your exponent stops at −14 in every format, as in fp16. Use `fmt.min_exponent`",
        edits={SIZE: "size = abs(x)", EXPONENT: CLAMPED.replace("fmt.min_exponent", "-14")},
    ),
    Mistake(
        "float64's gap",
        "you return the gap of Python's own floats, as `math.ulp` does, not that of `fmt`",
        answer=lambda x, fmt: math.ulp(x),
    ),
    Mistake(
        "gap below a power",
        "at a power of two you return the gap below it. Return the one above, twice as wide",
        answer=lambda x, fmt: right(math.nextafter(abs(x), 0), fmt),
        violates="the gap above it",
    ),
    Mistake(
        "negative is tiny",
        "you return the smallest gap for every negative number. Start with `abs(x)`",
        edits={SIZE: "size = max(x, fmt.smallest_normal)"},
        violates="|x|",
    ),
    Mistake(
        "signed",
        "your gap is negative for a negative number. A gap has no sign",
        edits={RETURN: f"{RETURN} * math.copysign(1.0, x)"},
    ),
    Mistake(
        "log2 of a negative",
        "a negative number has no logarithm. Start with `abs(x)`",
        edits={SIZE: "size = x", EXPONENT: LOG},
    ),
    Mistake(
        "log2",
        "your gap is doubled just below a power of two, as `math.log2` rounds up. Use `frexp`",
        edits={EXPONENT: LOG},
    ),
    Mistake(
        "rounds x first",
        "you return the gap above a power of two that x would round to. Do not round x first",
        answer=lambda x, fmt: right(decode(encode(x, fmt), fmt), fmt),
    ),
    Mistake(
        "keeps halving",
        "your gap keeps halving below the smallest normal number. Use `fmt.min_exponent`",
        edits={SIZE: "size = abs(x) or fmt.smallest_normal"},
    ),
    Mistake(
        "−bias as the smallest exponent",
        "your gap is halved for subnormals. Use `fmt.min_exponent`, which is 1 − bias",
        edits={SIZE: "size = abs(x)", EXPONENT: CLAMPED.replace("fmt.min_exponent", "-fmt.bias")},
    ),
    Mistake(
        "no subnormals",
        "subnormals are `fmt.smallest_subnormal` apart, not the smallest normal number",
        answer=lambda x, fmt: (
            right(x, fmt) if abs(x) >= fmt.smallest_normal else fmt.smallest_normal
        ),
    ),
    Mistake(
        "frexp of 0",
        "your gap at 0 is that at ½, as `math.frexp(0.0)` gives 0. Return the smallest gap",
        edits={SIZE: "size = abs(x)", EXPONENT: CLAMPED},
        violates="0 included",
    ),
    Mistake(
        "nothing at 0",
        "you return 0 for 0. The gap there is `fmt.smallest_subnormal`, the next number",
        edits={RETURN: f"{RETURN} if x else 0.0"},
    ),
]

find_ulp = Exercise(card, right, cases, mistakes)
