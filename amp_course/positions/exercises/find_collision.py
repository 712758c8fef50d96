"""Exercise 1 of chapter 03: the first position that shares its value with an earlier one."""

import random
from collections.abc import Callable, Iterator
from typing import Any

from amp_course.checking import Card, Case, Exercise, Mistake, Results, call_answer, read_number

card = Card(
    chapter="positions",
    name="find_collision",
    number=1,
    title="Find the first collision",
    difficulty=1,
    importance=4,
    minutes=5,
    lines=1,
    task="Write `find_collision(significand_bits)`: the smallest integer position that shares its "
    "value with an earlier one, in a format that stores this many significand bits (1 to 16). The "
    "format's range is no limit here.",
    hints=(
        "Up to which integer do the bits suffice for every one? bf16 stores 7, and counts to 256.",
        "A normal number has a hidden 1 in front, so M stored bits make M + 1. They write every "
        "integer below 2^(M + 1), and 2^(M + 1) is a power of two.",
        "The integer after that lies halfway between two numbers, and the tie goes to the even "
        "one, 2^(M + 1).",
    ),
    why="This number says how long a context may get before position ids in a format go wrong: "
    "256 in bf16, 2,048 in fp16.",
    alternative="`int(2 / torch.finfo(dtype).eps) + 1` for a torch dtype. eps is the spacing at "
    "1, so the spacing is 2 from 2/eps on.",
)


def right(significand_bits: int) -> int:
    return 2 ** (significand_bits + 1) + 1


def cases(answer: Callable[..., Any], draw: random.Random) -> Iterator[Case]:
    """All widths from 1 to 16, bf16's and fp16's first."""
    results = Results()
    for bits in (7, 10, *range(1, 17)):
        case = f"with {bits} significand bit{'s' * (bits > 1)}"
        results[case] = read_number(call_answer(answer, case, bits), case)
    yield Case("", {"the first collision": results})


mistakes = [
    Mistake(
        "forgets the hidden 1",
        "a number has a hidden 1 in front of its stored bits, so every integer up to twice your "
        "limit is exact",
        answer=lambda bits: 2**bits + 1,
        violates="stores this many significand bits",
    ),
    Mistake(
        "the last exact integer",
        "a power of two is exact. The first collision is the next integer, which is rounded to it",
        answer=lambda bits: 2 ** (bits + 1),
    ),
    Mistake(
        "a power of two, hidden 1 forgotten",
        "a power of two is always exact, and with the hidden 1 every integer up to twice your "
        "number is, too",
        answer=lambda bits: 2**bits,
    ),
    Mistake(
        "rounds the tie up",
        "the first collision is one earlier. The integer after the power of two is a tie, and is "
        "rounded down to the even number",
        answer=lambda bits: 2 ** (bits + 1) + 2,
        violates="the smallest integer position",
    ),
    Mistake(
        "one bit too many",
        "there is one bit more than the stored ones, the hidden 1, and you count two. The sign bit "
        "does not count",
        answer=lambda bits: 2 ** (bits + 2) + 1,
    ),
    Mistake(
        "shifts once too often",
        "this is 2^(`significand_bits` + 2), not 2^(`significand_bits` + 1) + 1. In a shift, `+` "
        "binds before `<<`",
        answer=lambda bits: 2 ** (bits + 2),
    ),
    Mistake(
        "bf16 for all",
        "this is bf16's answer whatever the argument is. Compute it from `significand_bits`",
        answer=lambda bits: 257,
    ),
    Mistake(
        "^ for a power",
        "in Python `^` is exclusive or. A power is written `2 ** (significand_bits + 1)`",
        answer=lambda bits: 2 ^ (bits + 1) + 1,
    ),
]

find_collision = Exercise(card, right, cases, mistakes)
