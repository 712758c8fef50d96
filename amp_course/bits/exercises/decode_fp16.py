"""Exercise 1 of chapter 01: read a pattern of fp16."""

import math
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from amp_course.checking import (
    Card,
    Case,
    Exercise,
    Mistake,
    Results,
    alike,
    call_answer,
    read_number,
)

card = Card(
    chapter="bits",
    name="decode_fp16",
    number=1,
    title="Read a pattern",
    difficulty=2,
    importance=4,
    minutes=12,
    lines=10,
    task="Write `decode_fp16(pattern)`: take the 16 bits of an fp16 number as an int, 0x0000 to "
    "0xFFFF, and return its value as a float, a NumPy scalar or a tensor. The check tries all "
    "65,536: mind the sign, the subnormals, −0, inf and NaN.",
    hints=(
        "Split the pattern into three fields. There are three cases: an exponent field of all "
        "zeros, of all ones, or neither.",
        "`sign = pattern >> 15`, `exponent = (pattern >> 10) & 0x1F`, `significand = pattern & "
        "0x3FF`. For fields 1 to 30 the value is 2^(exponent − 15) · (1 + significand/1024).",
        "Field 0: 2^−14 · significand/1024, with no hidden 1. Field 31: inf if the significand is "
        "0, otherwise NaN. `math.ldexp(x, n)` is x · 2^n, and `math.copysign(size, -1.0)` gives "
        "even a zero its sign.",
    ),
    why="Subnormals, −0, inf and NaN are patterns like any other, and training meets all of them.",
    alternative='`struct.unpack("<e", pattern.to_bytes(2, "little"))[0]`, or '
    "`np.uint16(pattern).view(np.float16)`: the machine's own reading of the same bits.",
)

KINDS = {  # in the order in which they are best understood
    "positive normal numbers": (
        0x3C00,
        0x3E00,
        0x3C01,
        0x4248,
        0x2E66,
        0x5555,
        0x0400,
        0x07FF,
        0x7800,
        0x7BFF,
    ),
    "negative normal numbers": (0xBC00, 0xC000, 0xC248, 0xAE66, 0x8400, 0xFBFF),
    "subnormals": (0x0001, 0x0003, 0x0155, 0x0200, 0x03FF),
    "negative subnormals": (0x8001, 0x8200, 0x83FF),
    "zeros": (0x0000, 0x8000),
    "inf and NaN": (0x7C00, 0x7E00, 0x7C01, 0x7D55, 0x7FFF),
    "negative inf": (0xFC00,),
}


def right(pattern: int) -> float:
    sign = -1.0 if pattern >> 15 else 1.0
    exponent = (pattern >> 10) & 0x1F
    significand = pattern & 0x3FF
    if exponent == 31:
        return sign * (math.nan if significand else math.inf)
    if exponent == 0:
        return sign * 2.0**-14 * (significand / 1024)
    return sign * 2.0 ** (exponent - 15) * (1 + significand / 1024)


def values(answer: Callable[..., Any], patterns: Iterable[int]) -> Results:
    found = Results()
    for pattern in patterns:
        case = f"for 0x{pattern:04X}"
        found[case] = read_number(call_answer(answer, case, pattern), case)
    return found


def cases(answer: Callable[..., Any], draw: random.Random) -> Iterator[Case]:
    """Examples of each kind of pattern; then all 65,536,
    for an answer that gets the examples right.
    """
    passed = True
    for kind, patterns in KINDS.items():
        found = values(answer, patterns)
        passed = passed and alike(found, values(right, patterns))
        yield Case("", {kind: found})
    if passed:
        yield Case("", {"all patterns": values(answer, range(2**16))})


SIGN, EXPONENT = "sign = -1.0 if pattern >> 15 else 1.0", "exponent = (pattern >> 10) & 0x1F"
IF_TOP, TOP = "if exponent == 31:", "return sign * (math.nan if significand else math.inf)"
IF_LOW, LOW = "if exponent == 0:", "return sign * 2.0**-14 * (significand / 1024)"
SIGNIFICAND, NORMAL = (
    "significand = pattern & 0x3FF",
    "return sign * 2.0 ** (exponent - 15) * (1 + significand / 1024)",
)

mistakes = [
    Mistake(
        "bias 14",
        "your normal numbers are twice as large as they should be, as with a bias of 14. It is "
        "2^(5 − 1) − 1 = 15",
        edits={NORMAL: NORMAL.replace("15", "14")},
    ),
    Mistake(
        "bias 16",
        "your normal numbers are half of what they should be, as with a bias of 16. It is 2^(5 − "
        "1) − 1 = 15",
        edits={NORMAL: NORMAL.replace("15", "16")},
    ),
    Mistake(
        "fp32's bias",
        "your normal numbers have a bias of 127. That is fp32's, with 8 exponent bits. With "
        "fp16's 5 it is 15",
        edits={NORMAL: NORMAL.replace("15", "127")},
    ),
    Mistake(
        "no hidden 1",
        "the hidden 1 is missing. A normal number is 1.significand: the 1 isn't stored, but it "
        "counts",
        edits={NORMAL: NORMAL.replace("1 + ", "")},
    ),
    Mistake(
        "divides by 1023",
        "your steps are 1/1023 wide, as if the largest significand made a full 1. They are 1/1024 "
        "wide",
        edits={NORMAL: NORMAL.replace("1024", "1023")},
    ),
    Mistake(
        "does not divide",
        "your normal numbers are 1024 times too large: if the hidden 1 counts 1024, divide the "
        "sum by 1024",
        edits={NORMAL: NORMAL.replace("1 + significand / 1024", "1024 + significand")},
    ),
    Mistake(
        "-1 ** sign",
        "positive numbers come out negative. If you wrote `-1 ** sign`: put the −1 in parentheses",
        edits={SIGN: "sign = -(1.0 ** (pattern >> 15))"},
    ),
    Mistake(
        "ignores the sign",
        "negative numbers come out positive. The sign is the first of the 16 bits, `pattern >> 15`",
        edits={SIGN: "sign = 1.0"},
        violates="the sign",
    ),
    Mistake(
        "sign in the exponent",
        "your exponent field is 32 too large for negative numbers: mask the sign off, `(pattern "
        ">> 10) & 0x1F`",
        edits={EXPONENT: "exponent = pattern >> 10", IF_TOP: "if exponent & 31 == 31:"},
    ),
    Mistake(
        "forgets subnormals",
        "exponent field 0 has no hidden 1, and it has the exponent of field 1: 2^-14 · "
        "significand/1024",
        edits={IF_LOW: "if False:"},
        violates="the subnormals",
    ),
    Mistake(
        "hidden 1 at 2^-14",
        "you give the subnormals a hidden 1. With an exponent field of 0 there is none: 2^-14 · "
        "significand/1024",
        edits={LOW: LOW.replace("significand", "1 + significand")},
    ),
    Mistake(
        "subnormals halved",
        "your subnormals are half of what they should be. Their exponent is −14, as for field 1, "
        "not 0 − 15",
        edits={LOW: LOW.replace("14", "15")},
    ),
    Mistake(
        "flushes subnormals",
        "your subnormals come out as zero. With exponent field 0 the value is 2^-14 · "
        "significand/1024",
        edits={LOW: "return sign * 0.0"},
    ),
    Mistake(
        "loses −0",
        "the sign of zero got lost. −0.0 is what a tiny negative number becomes; the int 0 has no "
        "sign",
        edits={LOW: f"{LOW} + 0.0"},
        violates="−0",
    ),
    Mistake(
        "all ones is a number",
        "an exponent field of all ones isn't an exponent. It means inf if the significand is 0, "
        "otherwise NaN",
        edits={IF_TOP: "if False:"},
        violates="inf and NaN",
    ),
    Mistake(
        "only inf is special",
        "you read NaN as numbers. An exponent field of all ones with a significand other than 0 "
        "is NaN",
        edits={IF_TOP: "if exponent == 31 and significand == 0:"},
        violates="NaN",
    ),
    Mistake(
        "all ones is inf",
        "you read every exponent field of all ones as inf. Only a significand of 0 means inf, any "
        "other means NaN",
        edits={TOP: "return sign * math.inf"},
    ),
    Mistake(
        "all ones is NaN",
        "you read every exponent field of all ones as NaN. With a significand of 0 it is inf",
        edits={TOP: "return math.nan"},
    ),
    Mistake(
        "inf and NaN swapped",
        "you have inf and NaN the wrong way round: a significand of 0 means inf, any other means "
        "NaN",
        edits={TOP: "return sign * (math.inf if significand else math.nan)"},
    ),
    Mistake(
        "inf loses its sign",
        "your inf is always positive. It has a sign like all other values: 0xFC00 is -inf",
        edits={TOP: "return math.nan if significand else math.inf"},
    ),
]

decode_fp16 = Exercise(card, right, cases, mistakes)
