"""Exercise 4 of chapter 01: a format's limits from its widths."""

import random
from collections.abc import Iterable, Iterator
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
    *(FloatFormat.of(4, 3), FloatFormat.of(5, 2, "fn"), FloatFormat.of(3, 6, "fn")),
    *(FloatFormat.of(5, 5, "finite"), FloatFormat.of(2, 1), FloatFormat.of(2, 1, "fn")),
)
WIDE = (FP64, FloatFormat.of(11, 3), FloatFormat.of(10, 52, "fn"), FloatFormat.of(10, 40, "finite"))


def right(exponent_bits: int, significand_bits: int, specials: str) -> dict[str, float]:
    bias = 2 ** (exponent_bits - 1) - 1
    eps = 2.0**-significand_bits
    smallest_normal = 2.0 ** (1 - bias)
    smallest_subnormal = smallest_normal * eps
    field = 2**exponent_bits - 2 if specials == "ieee" else 2**exponent_bits - 1
    significand = 2 - 2 * eps if specials == "fn" else 2 - eps
    largest = significand * 2.0 ** (field - bias)
    return {
        "eps": eps,
        "smallest_normal": smallest_normal,
        "smallest_subnormal": smallest_subnormal,
        "max": largest,
    }


def limits(answer: Any, formats: Iterable[FloatFormat]) -> dict[str, Results]:
    """Return each limit of all formats, `max` under each rule on its own."""
    found: dict[str, Results] = {}
    for fmt in formats:
        widths = (fmt.exponent_bits, fmt.significand_bits, fmt.specials)
        case = f"for {fmt.name}, {widths}"
        for key, got in read_dict(call_answer(answer, case, *widths), KEYS, case).items():
            output = f"max under {fmt.specials}" if key == "max" else key
            results = found.setdefault(output, Results(what=f"`{key}`"))
            results[case] = read_number(got, case, f"`{key}` is")
    return found


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """Take usual formats, then wide ones and some drawn if the answer gets these right."""
    yield Case("", found := limits(answer, USUAL))
    if alike(found, limits(right, USUAL)):
        drawn = [
            FloatFormat.of(draw.randint(3, 8), draw.randint(2, 12), rule)
            for rule in get_args(Specials)
        ]
        yield Case("", limits(answer, (*WIDE, *drawn)))


EPS, NORMAL = "eps = 2.0**-significand_bits", "smallest_normal = 2.0 ** (1 - bias)"
SUBNORMAL = "smallest_subnormal = smallest_normal * eps"
FIELD = 'field = 2**exponent_bits - 2 if specials == "ieee" else 2**exponent_bits - 1'
LARGEST = "largest = significand * 2.0 ** (field - bias)"


def wrong_rule(name: str, rule: str, used: str, feedback: str, violates: str = "") -> Mistake:
    def wrong(e: int, m: int, given: str) -> dict[str, float]:
        return right(e, m, used if given == rule else given)

    return Mistake(name, feedback, wrong, violates=violates)


mistakes = [
    *(
        Mistake(
            f"{name} {how}", f"your {name} is {how}. It is {rule}", edits={line: f"{line} {by}"}
        )
        for name, line, rule in (
            ("eps", EPS, "2^−M, since all M stored bits come after the point"),
            ("smallest normal", NORMAL, "2^(1 − bias), and the bias is 2^(E − 1) − 1"),
            ("smallest subnormal", SUBNORMAL, "2^−M times the smallest normal number"),
        )
        for how, by in {"halved": "/ 2", "doubled": "* 2"}.items()
    ),
    Mistake(
        "fp16's eps",
        "your eps is fp16's for every format. It is 2^−M, with M significand bits",
        edits={EPS: "eps = 2.0**-10"},
        violates="from the two widths",
    ),
    Mistake(
        "fp16's bias",
        "your smallest normal number is fp16's for every format. It is 2^(1 − bias), with a bias "
        "of 2^(E − 1) − 1",
        edits={"bias = 2 ** (exponent_bits - 1) - 1": "bias = 15"},
        violates="The bias is IEEE's",
    ),
    Mistake(
        "no subnormals",
        "your smallest subnormal is the smallest normal number. Go M halvings further down",
        edits={SUBNORMAL: "smallest_subnormal = smallest_normal"},
        violates="`smallest_subnormal`",
    ),
    Mistake(
        "power of two",
        "your `max` is a power of two. Its significand is the largest one, just below 2",
        edits={LARGEST: "largest = 2.0 ** (field - bias)"},
    ),
    Mistake(
        "a full 2",
        "your `max` is one step too high: its significand is one step below 2",
        edits={LARGEST: "largest = 2.0 ** (field - bias + 1)"},
    ),
    wrong_rule(
        "IEEE as finite",
        *("ieee", "finite"),
        "under “ieee” an exponent field of all ones means inf or NaN, so the last one for numbers "
        "is 2^E − 2",
    ),
    wrong_rule(
        "fn as IEEE",
        *("fn", "ieee"),
        "under “fn” only the pattern of all ones is NaN, and there is no inf, so the last exponent "
        "field has numbers",
        violates="the rule for special patterns",
    ),
    wrong_rule(
        "fn as finite",
        *("fn", "finite"),
        "under “fn” the pattern of all ones is NaN, so the largest number is one step below it",
    ),
    Mistake(
        "fn a field early",
        "under “fn” you stop one step before the largest number of IEEE's rule. Go to the last "
        "exponent field, where only the pattern of all ones is NaN",
        edits={FIELD: FIELD.replace('== "ieee"', '!= "finite"')},
    ),
    wrong_rule(
        "finite as fn",
        *("finite", "fn"),
        "under “finite” the largest number is one step further up: the pattern of all ones is a "
        "number, and not NaN as under “fn”",
    ),
    wrong_rule(
        "finite as IEEE",
        *("finite", "ieee"),
        "under “finite” there is no inf and no NaN, so the pattern of all ones is the largest "
        "number",
    ),
]

derive_limits = Exercise(card, right, cases, mistakes)
