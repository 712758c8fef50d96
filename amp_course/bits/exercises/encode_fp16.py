"""Exercise 2 of chapter 01: write a number as a pattern of fp16."""

import math
import random
from collections.abc import Iterator
from typing import Any

import torch

from amp_course.bits import FP16, decode
from amp_course.checking import (
    Card,
    Case,
    Exercise,
    Mistake,
    Results,
    call_answer,
    read_integer,
    show_number,
)

card = Card(
    chapter="bits",
    name="encode_fp16",
    number=2,
    title="Write a pattern",
    difficulty=4,
    importance=4,
    minutes=20,
    lines=12,
    task="Write `encode_fp16(value)`: take any Python float and return the pattern of the nearest "
    "fp16 number, an int from 0x0000 to 0xFFFF. Ties go to even, what is too large becomes inf, "
    "and the sign is kept, for zeros too. Round only once.",
    hints=(
        "First NaN, the sign, inf and zero. For the rest: which power of two is at or below it, "
        "and how wide are the gaps there?",
        "`math.frexp(x)` gives a fraction from 0.5 to 1 and an n with x = fraction · 2^n, so the "
        "exponent of 1.m is n − 1. It is never below −14. Count `steps = round(math.ldexp(x, 10 - "
        "exponent))`: Python's `round` takes ties to even.",
        "For normal numbers `steps` runs from 1024 to 2048, hidden 1 included; for subnormals it "
        "is below 1024. In both cases the pattern is `((exponent + 14) << 10) + steps`, and if "
        "`steps` is 2048 the carry raises the exponent, as it should. From 0x7C00 on it is inf: "
        "`min(…, 0x7C00)`.",
    ),
    why="Every cast to half precision rounds like this: what it does with ties and extremes "
    "decides what training loses.",
    alternative="check for overflow first, `abs(x) >= 65520`, then let `struct.pack('<e', x)` do "
    "the rest: it rounds to even.",
)

TINY = 2.0**-24  # the smallest subnormal


def right(value: float) -> int:
    if math.isnan(value):
        return 0x7E00
    sign = 0x8000 if math.copysign(1.0, value) < 0 else 0
    size = abs(value)
    if size == 0:
        return sign
    if math.isinf(size):
        return sign + 0x7C00
    exponent = max(math.frexp(size)[1] - 1, -14)  # subnormals have that of 2^-14
    steps = round(math.ldexp(size, 10 - exponent))  # Python rounds half to even
    pattern = ((exponent + 14) << 10) + steps
    return sign + min(pattern, 0x7C00)


KINDS = {  # in the order in which they are best understood
    "fp16's own numbers": (
        *(1.0, 1.5, 0.75, 1000.0, 3.140625, 65504.0, 2.0**-14, -1.0, -1.5, -65504.0),
    ),
    "numbers in between": (
        *(1 + 0.75 * 2**-10, 1 + 0.25 * 2**-10, 0.1, 3.14159, 1000.4, 1e-4, -0.1, -0.7, -1000.4),
    ),
    "carries": (2 - 2**-12, 4 - 2**-11, 1024 - 2**-3, -2 + 2**-12, 2.0**-13 - 2**-26),
    "ties": (2049.0, 2051.0, 1 + 2**-11, 1 + 3 * 2**-11, 2047.5, 2046.5, -2049.0, -2051.0),
    "the top": (65519.99, 65520.0, 65536.0, 70000.0, 1.7e308, -65519.99, -65520.0, -1.7e308),
    "inf": (math.inf, -math.inf),
    "subnormals": [n * TINY for n in (1, 3, 2**9, 1023, -1, -341)],
    "between subnormals": [
        n * TINY for n in (1.75, 1.25, 1.5, 2.5, 0.51, 0.5, 1022.5, 1023.5, -1.75, -2.5, -0.5)
    ],
    "zeros": (0.0, -0.0, 1e-30, -1e-30, 5e-324, -5e-324),
    "NaN": (math.nan,),
    "close to ties": (
        *(1 + 2**-11 + 2**-40, 2049 + 2**-40, -2051 + 2**-40, TINY / 2 + 2**-60, 65520 - 2**-30),
    ),
}


def write(pattern: int) -> str:
    """Write a pattern with its value: 0x3C00 → "0x3C00 (1)". All NaN are alike."""
    if not 0 <= pattern < 2**16:
        return f"{'-' * (pattern < 0)}0x{abs(pattern):04X}, outside of 16 bits"
    value = decode(pattern, FP16)
    return "a pattern of NaN" if math.isnan(value) else f"0x{pattern:04X} ({show_number(value)})"


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """Take numbers of each kind, then draw some of any size."""
    drawn = [math.ldexp(draw.uniform(-2, 2), draw.randint(-27, 16)) for _ in range(300)]
    for kind, values in {**KINDS, "any numbers": drawn}.items():
        found = Results()
        for value in values:
            case = f"for {min(show_number(value), repr(value), key=len)}"
            found[case] = write(read_integer(call_answer(answer, case, value), case))
        yield Case("", {kind: found})


NAN, IF_INF = "return 0x7E00", "if math.isinf(size):"
SIGN = "sign = 0x8000 if math.copysign(1.0, value) < 0 else 0"
EXPONENT = "exponent = max(math.frexp(size)[1] - 1, -14)"
STEPS = "steps = round(math.ldexp(size, 10 - exponent))"
PATTERN = "pattern = ((exponent + 14) << 10) + steps"
RETURN = "return sign + min(pattern, 0x7C00)"

mistakes = [
    Mistake(
        "returns the value",
        "your function returns the value. Return its 16 bits as an int: 0x3C00 for 1.0",
        answer=lambda value: right(value) and decode(right(value), FP16),
    ),
    Mistake(
        "no case for inf",
        "inf cannot be converted to an int. Check for it first: it is 0x7C00 or 0xFC00",
        edits={IF_INF: "if False:"},
    ),
    Mistake(
        "a quotient overflows",
        "an intermediate result overflows to inf. Check for overflow first",
        edits={STEPS: f"steps = round(size / TINY)\n{STEPS}"},
    ),
    *(
        Mistake(
            f"exponent field 1 too {way}",
            f"your exponent field is 1 too {way}. For 1.m · 2^e it is e + 15, and the hidden 1 "
            "counts only once",
            edits={PATTERN: PATTERN.replace("14", offset)},
        )
        for way, offset in {"high": "15", "low": "13"}.items()
    ),
    Mistake(
        "ignores the sign",
        "negative numbers get the pattern of positive ones. Add 0x8000 for the sign",
        edits={SIGN: "sign = 0"},
        violates="the sign is kept",
    ),
    Mistake(
        "signed",
        "your pattern is negative if the sign bit is 1. Add `& 0xFFFF`",
        edits={RETURN: f"{RETURN} - 2 * sign"},
        violates="0x0000 to 0xFFFF",
    ),
    Mistake(
        "truncates",
        "you cut off the bits that do not fit. Round to the nearest step",
        edits={STEPS: STEPS.replace("round", "math.floor")},
        violates="nearest",
    ),
    Mistake(
        "rounds up",
        "you always round away from zero. Round to the nearest step",
        edits={STEPS: STEPS.replace("round", "math.ceil")},
    ),
    Mistake(
        "loses the carry",
        "a significand that rounds up to 2.0 does not raise the exponent field. Join the two with "
        "`+`, not with `|` or a mask",
        edits={PATTERN: f"{PATTERN}\nif steps == 2048:\n    pattern -= 1024"},
    ),
    Mistake(
        "carry into a bit that is set",
        "a significand that rounds up to 2.0 raises the exponent field only if that is even, as "
        "with `|`. Use `+`",
        edits={PATTERN: f"{PATTERN}\npattern -= 1024 * (steps == 2048 and exponent % 2 == 0)"},
    ),
    Mistake(
        "caps the carry",
        "a significand that rounds up to 2.0 is capped. Let it carry into the exponent field",
        edits={PATTERN: PATTERN.replace("steps", "min(steps, 2047)")},
    ),
    Mistake(
        "half up",
        "ties always go away from zero. A tie goes to the neighbour whose pattern is even",
        edits={STEPS: "steps = math.floor(math.ldexp(size, 10 - exponent) + 0.5)"},
        violates="Ties go to even",
    ),
    Mistake(
        "overflow too early",
        "numbers between 65504 and 65520 round to 65504. Check for overflow after rounding",
        edits={IF_INF: "if size > 65504:"},
    ),
    Mistake(
        "clamps",
        "what is too large becomes the largest number. From 65520 on it is inf",
        edits={RETURN: RETURN.replace("0x7C00", "0x7BFF")},
        violates="what is too large becomes inf",
    ),
    Mistake(
        "overflow loses the sign",
        "what is too far below zero becomes +inf. Keep the sign: -inf is 0xFC00",
        edits={RETURN: "return sign + pattern if pattern < 0x7C00 else 0x7C00"},
    ),
    Mistake(
        "overflow is NaN",
        "what is too large becomes NaN. It should be inf, 0x7C00",
        edits={RETURN: "return sign + (pattern if pattern < 0x7C00 else 0x7E00)"},
    ),
    Mistake(
        "flushes subnormals",
        "numbers below 2^-14 become zero. There, the pattern counts steps of 2^-24",
        edits={EXPONENT: f"if size < 2.0**-14:\n    return sign\n{EXPONENT}"},
    ),
    Mistake(
        "exponent below −14",
        "your exponent goes below −14. It stays there, and the pattern counts steps of 2^-24",
        edits={EXPONENT: "exponent = math.frexp(size)[1] - 1"},
    ),
    Mistake(
        "loses −0",
        "the sign of −0.0 is lost, as `-0.0 < 0` is False. Use `math.copysign(1.0, value)`",
        edits={SIGN: "sign = 0x8000 if value < 0 else 0"},
        violates="for zeros too",
    ),
    Mistake(
        "NaN is inf",
        "NaN becomes inf. The significand of NaN is not 0: 0x7E00 is usual",
        edits={NAN: "return 0x7C00"},
    ),
    Mistake(
        "NaN is zero",
        "NaN becomes zero, which hides that something went wrong. Use 0x7E00",
        edits={NAN: "return 0"},
        violates="any Python float",
    ),
    Mistake(
        "through float32",
        "a number close to a tie is rounded as a tie, as if it were converted to fp32 first. Round "
        "the float itself",
        answer=lambda value: right(torch.tensor(value).item()),
        violates="Round only once",
    ),
]

encode_fp16 = Exercise(card, right, cases, mistakes)
