"""Exercise 4 of chapter 01: a format's limits from its widths."""

import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any, get_args

from amp_course.bits.formats import FORMATS, FP16, FP64, FloatFormat, Specials
from amp_course.checking import (
    Card,
    Case,
    Exercise,
    Mistake,
    Results,
    alike,
    call_answer,
    read_dict,
    read_number,
)

card = Card(
    chapter="bits",
    name="derive_limits",
    number=4,
    title="A format's limits from its widths",
    difficulty=3,
    importance=3,
    minutes=15,
    lines=14,
    task="Write `derive_limits(exponent_bits, significand_bits, specials)`: from the two widths "
    "and the rule for special patterns, return a dict with the four keys `eps`, "
    "`smallest_normal`, `smallest_subnormal` and `max`. The bias is IEEE's, 2^(exponent bits − 1) "
    "− 1. Expect 2 to 11 exponent bits and 1 to 52 significand bits; every limit fits in fp64.",
    hints=(
        "For three of the four, the rule doesn't matter. For `max`, ask which pattern is the last "
        "one that is a number.",
        "The smallest normal number has exponent field 1, so its exponent is 1 − bias. The "
        "smallest subnormal lies as many halvings below it as there are significand bits.",
        "`max`: the last field of numbers is 2^E − 2 under “ieee”, else 2^E − 1. The significand "
        "is all ones, but one less under “fn”. Then `max` is 2^(field − bias) · (1 + "
        "significand/2^M).",
    ),
    why="Two widths and a rule are all there is to a format. If you can derive fp8's limits, you "
    "need no table for the next.",
    alternative="take the pattern of the largest number and decode it, with the widths as "
    "arguments: that gives `max`.",
)

KEYS = ("eps", "smallest_normal", "smallest_subnormal", "max")  # from the simple to the tricky
USUAL = (
    FP16,
    *FORMATS[1:],
    FloatFormat.of(4, 3),
    FloatFormat.of(5, 2, "fn"),
    FloatFormat.of(3, 6, "fn"),
)
OWN = (*USUAL, FloatFormat.of(5, 5, "finite"), FloatFormat.of(2, 1), FloatFormat.of(2, 1, "fn"))
WIDE = (FP64, FloatFormat.of(11, 3), FloatFormat.of(10, 52, "fn"), FloatFormat.of(10, 40, "finite"))


def right(exponent_bits: int, significand_bits: int, specials: str) -> dict[str, float]:
    bias = 2 ** (exponent_bits - 1) - 1
    eps = 2.0**-significand_bits
    smallest_normal = 2.0 ** (1 - bias)
    smallest_subnormal = smallest_normal * eps
    field = 2**exponent_bits - 2 if specials == "ieee" else 2**exponent_bits - 1
    significand = 2 - 2 * eps if specials == "fn" else 2 - eps
    largest = significand * 2.0 ** (field - bias)
    return dict(zip(KEYS, (eps, smallest_normal, smallest_subnormal, largest), strict=True))


def limits(answer: Callable[..., Any], formats: Iterable[FloatFormat]) -> dict[str, Results]:
    """What is to be judged: each limit, and `max` under each rule → the limits of all formats."""
    found: dict[str, Results] = {}
    for fmt in formats:
        widths = (fmt.exponent_bits, fmt.significand_bits, fmt.specials)
        case = f"for {fmt.name}, {widths}"
        for key, got in read_dict(call_answer(answer, case, *widths), KEYS, case).items():
            limit = read_number(got, case, f"`{key}` is")
            output = f"max under {fmt.specials}" if key == "max" else key
            found.setdefault(output, Results(what=f"`{key}`"))[case] = limit
    return found


def cases(answer: Callable[..., Any], draw: random.Random) -> Iterator[Case]:
    """Formats that have a name, and others; then wide ones and drawn ones,
    for an answer that gets the first ones right.
    """
    yield Case("", found := limits(answer, OWN))
    if alike(found, limits(right, OWN)):
        drawn = [
            FloatFormat.of(draw.randint(3, 8), draw.randint(2, 12), rule)
            for rule in get_args(Specials)
        ]
        yield Case("", limits(answer, (*WIDE, *drawn)))


BIAS, EPS = "bias = 2 ** (exponent_bits - 1) - 1", "eps = 2.0**-significand_bits"
NORMAL, SUBNORMAL = (
    "smallest_normal = 2.0 ** (1 - bias)",
    "smallest_subnormal = smallest_normal * eps",
)
LARGEST = "largest = significand * 2.0 ** (field - bias)"

mistakes = [
    Mistake(
        "eps halved",
        "your eps is half of what it should be. The M stored bits make 2^M steps from 1 to 2, not "
        "2^(M+1)",
        edits={EPS: f"{EPS} / 2"},
    ),
    Mistake(
        "eps doubled",
        "your eps is twice what it should be. All M stored bits come after the point, so the last "
        "counts 2^−M",
        edits={EPS: f"{EPS} * 2"},
    ),
    Mistake(
        "fp16's eps",
        "your eps is fp16's for every format. It is 2^−M, with M significand bits",
        edits={EPS: "eps = 2.0**-10"},
        violates="from the two widths",
    ),
    Mistake(
        "smallest normal halved",
        "your smallest normal number is half of the right one, 2^(1 − bias): field 1, and a bias "
        "of 2^(E − 1) − 1",
        edits={NORMAL: "smallest_normal = 2.0**-bias"},
    ),
    Mistake(
        "smallest normal doubled",
        "your smallest normal number is twice the right one, 2^(1 − bias): field 1, and a bias of "
        "2^(E − 1) − 1",
        edits={NORMAL: "smallest_normal = 2.0 ** (2 - bias)"},
    ),
    Mistake(
        "fp16's bias",
        "your smallest normal number is fp16's for every format. It is 2^(1 − bias), with a bias "
        "of 2^(E − 1) − 1",
        edits={BIAS: "bias = 15"},
        violates="The bias is IEEE's",
    ),
    Mistake(
        "no subnormals",
        "your smallest subnormal is the smallest normal number. The subnormals go M halvings "
        "further down",
        edits={SUBNORMAL: "smallest_subnormal = smallest_normal"},
        violates="`smallest_subnormal`",
    ),
    Mistake(
        "subnormals halved",
        "your smallest subnormal is half of the right one. Its exponent is 1 − bias, as for field "
        "1, not 0 − bias",
        edits={SUBNORMAL: "smallest_subnormal = smallest_normal * eps / 2"},
    ),
    Mistake(
        "subnormals doubled",
        "your smallest subnormal is twice what it should be. It is 2^−M times the smallest normal "
        "number",
        edits={SUBNORMAL: "smallest_subnormal = smallest_normal * eps * 2"},
    ),
    Mistake(
        "power of two",
        "your `max` is a power of two. The largest number also has the largest significand, just "
        "below 2",
        edits={LARGEST: "largest = 2.0 ** (field - bias)"},
    ),
    Mistake(
        "a full 2",
        "your `max` is one step past the largest number, whose significand is one step short of 2",
        edits={LARGEST: "largest = 2.0 ** (field - bias + 1)"},
    ),
    Mistake(
        "IEEE as finite",
        "under “ieee” an exponent field of all ones means inf or NaN: the last one for numbers is "
        "2^E − 2",
        answer=lambda e, m, rule: right(e, m, "finite" if rule == "ieee" else rule),
    ),
    Mistake(
        "fn as IEEE",
        "under “fn” only the pattern of all ones is NaN, and there is no inf: the last exponent "
        "field has numbers",
        answer=lambda e, m, rule: right(e, m, "ieee" if rule == "fn" else rule),
        violates="the rule for special patterns",
    ),
    Mistake(
        "fn as finite",
        "under “fn” the pattern of all ones is NaN, so the largest number is one step below it",
        answer=lambda e, m, rule: right(e, m, "finite" if rule == "fn" else rule),
    ),
    Mistake(
        "finite as IEEE",
        "under “finite” there is neither inf nor NaN: the pattern of all ones is the largest "
        "number",
        answer=lambda e, m, rule: right(e, m, "ieee" if rule == "finite" else rule),
    ),
]

derive_limits = Exercise(card, right, cases, mistakes)
