"""Exercise 1 of chapter 01: read a pattern of fp16."""

import math
import random
from collections.abc import Iterable, Iterator
from typing import Any

from amp_course.bits.formats import FP16
from amp_course.bits.scalar import decode, encode
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
    "`np.uint16(pattern).view(np.float16)`, which read the same bits as a number.",
)


def right(pattern: int) -> float:
    sign = -1.0 if pattern >> 15 else 1.0
    exponent = (pattern >> 10) & 0x1F
    significand = pattern & 0x3FF
    if exponent == 31:
        return sign * (math.nan if significand else math.inf)
    if exponent == 0:
        return sign * 2.0**-14 * (significand / 1024)
    return sign * 2.0 ** (exponent - 15) * (1 + significand / 1024)


KINDS = {  # in the order in which they are best understood
    "positive normal numbers": "3C00 3E00 3C01 4248 2E66 5555 0400 07FF 7800 7BFF",
    "negative normal numbers": "BC00 C000 C248 AE66 8400 FBFF",
    "subnormals": "0001 0003 0155 0200 03FF",
    "negative subnormals": "8001 8200 83FF",
    "zeros": "0000 8000",
    "inf and NaN": "7C00 7E00 7C01 7D55 7FFF",
    "negative inf": "FC00",
}


def values(answer: Any, patterns: Iterable[int]) -> Results:
    found = Results()
    for pattern in patterns:
        case = f"for 0x{pattern:04X}"
        found[case] = read_number(call_answer(answer, case, pattern), case)
    return found


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """Take some patterns of each kind, then all 65,536 if the answer gets these right."""
    passed = True
    for kind, written in KINDS.items():
        patterns = [int(one, 16) for one in written.split()]
        found = values(answer, patterns)
        passed = passed and alike(found, values(right, patterns))
        yield Case("", {kind: found})
    if passed:
        yield Case("", {"all patterns": values(answer, range(2**16))})


SIGN, EXPONENT = "sign = -1.0 if pattern >> 15 else 1.0", "exponent = (pattern >> 10) & 0x1F"
IF_TOP, TOP = "if exponent == 31:", "return sign * (math.nan if significand else math.inf)"
LOW = "return sign * 2.0**-14 * (significand / 1024)"
NORMAL = "return sign * 2.0 ** (exponent - 15) * (1 + significand / 1024)"


def wrong_bias(name: str, bias: int, effect: str) -> Mistake:
    edits = {NORMAL: NORMAL.replace("15", str(bias))}
    return Mistake(
        name, f"{effect}, as with a bias of {bias}. The bias is 2^(5 − 1) − 1 = 15", edits=edits
    )


mistakes = [
    Mistake(
        "converts the int",
        "the int itself is converted, as by `np.float16(pattern)`. Read its bits",
        answer=lambda pattern: decode(encode(pattern, FP16), FP16),
    ),
    wrong_bias("bias 14", 14, "your normal numbers are twice what they should be"),
    wrong_bias("bias 16", 16, "your normal numbers are half of what they should be"),
    wrong_bias("fp32's bias", 127, "your normal numbers are far too small"),
    Mistake(
        "forgets the hidden 1",
        "a normal number is 1.significand. The 1 is not stored, but it counts",
        edits={NORMAL: NORMAL.replace("1 + ", "")},
    ),
    Mistake(
        "divides by 1023",
        "your steps are 1/1023 wide. Divide the significand by 1024",
        edits={NORMAL: NORMAL.replace("1024", "1023")},
    ),
    Mistake(
        "does not divide",
        "your normal numbers are 1024 times too large. Divide their significand by 1024",
        edits={NORMAL: NORMAL.replace("1 + significand / 1024", "1024 + significand")},
    ),
    Mistake(
        "-1 ** sign",
        "positive numbers come out negative. Does `-1 ** sign` lack parentheses, `(-1)`?",
        edits={SIGN: "sign = -(1.0 ** (pattern >> 15))"},
    ),
    Mistake(
        "ignores the sign",
        "negative numbers come out positive. The sign is the first bit, `pattern >> 15`",
        edits={SIGN: "sign = 1.0"},
        violates="the sign",
    ),
    Mistake(
        "sign in the exponent",
        "for negative numbers your exponent field is 32 too large. Mask it with `& 0x1F`",
        edits={EXPONENT: "exponent = pattern >> 10", IF_TOP: "if exponent & 31 == 31:"},
    ),
    *(
        Mistake(
            name,
            "exponent field 0 has no hidden 1: the value is 2^-14 · significand/1024",
            edits=edits,
            violates="the subnormals",
        )
        for name, edits in {
            "forgets subnormals": {"if exponent == 0:": "if False:"},
            "hidden 1 at 2^-14": {LOW: LOW.replace("significand", "1 + significand")},
            "flushes subnormals": {LOW: "return sign * 0.0"},
        }.items()
    ),
    Mistake(
        "subnormals halved",
        "your subnormals are halved. Their exponent is −14, as for field 1, not 0 − 15",
        edits={LOW: LOW.replace("14", "15")},
    ),
    Mistake(
        "loses −0",
        "the sign of zero is lost. 0x8000 is −0.0, a float: the int 0 has no sign",
        edits={LOW: f"{LOW} + 0.0"},
        violates="−0",
    ),
    *(
        Mistake(
            name,
            "an exponent field of all ones is inf if the significand is 0, and otherwise NaN",
            edits=edits,
            violates="inf and NaN",
        )
        for name, edits in {
            "all ones is a number": {IF_TOP: "if False:"},
            "only inf is special": {IF_TOP: "if exponent == 31 and significand == 0:"},
            "all ones is inf": {TOP: "return sign * math.inf"},
            "all ones is NaN": {TOP: "return math.nan"},
            "inf and NaN swapped": {TOP: "return sign * (math.inf if significand else math.nan)"},
        }.items()
    ),
    Mistake(
        "inf loses its sign",
        "your inf is always positive. It has a sign too: 0xFC00 is -inf",
        edits={TOP: "return math.nan if significand else math.inf"},
    ),
]

decode_fp16 = Exercise(card, right, cases, mistakes)
