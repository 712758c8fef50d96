"""What judges measure with, and that they survive whatever an answer returns."""

import math
import random

import numpy as np
import pytest
import torch

from amp_course.bits.exercises import ALL, decode_fp16, encode_fp16, find_ulp, round_bf16
from amp_course.bits.formats import BF16, FP8_E4M3, FP8_E5M2, FP16
from amp_course.bits.judges import encoding
from amp_course.bits.judges.cutting import cut, floats
from amp_course.bits.judges.spacing import gap, numbers
from amp_course.bits.scalar import decode, encode, ulp
from amp_course.checking.asking import show
from tests.exercises.answers import bits as answers


@pytest.mark.parametrize("fmt", [FP16, BF16, FP8_E4M3, FP8_E5M2], ids=lambda fmt: fmt.name)
def test_the_ruler_measures_what_ulp_computes(fmt):
    ruler, draw = numbers(fmt), random.Random()
    for _ in range(2000):
        x = math.ldexp(draw.uniform(1, 2), draw.randint(fmt.min_exponent - fmt.significand_bits, fmt.max_exponent - 1))
        assert gap(x, ruler) == ulp(x, fmt)
    for x in (0.0, fmt.smallest_subnormal, fmt.smallest_normal, 1.0, fmt.max):
        assert gap(x, ruler) == ulp(x, fmt)


def test_encoding_is_asked_in_each_place_and_numpy_knows_the_answer():
    cases = encoding._cases()
    values = [value for _, value in cases]
    with np.errstate(all="ignore"):
        patterns = np.array(values).astype(np.float16).view(np.uint16).tolist()
    assert all(encode(v, FP16) == p or v != v for v, p in zip(values, patterns, strict=True))
    ties = [v for place, v in cases if place == "tie"]
    assert all(encode(math.nextafter(v, 0), FP16) + 1 == encode(math.nextafter(v, math.inf), FP16) for v in ties)
    low = [v for place, v in cases if place.startswith("subnormal")]
    assert all(abs(v) < FP16.smallest_normal for v in low)
    assert len({value for place, value in encoding._cases() if place == "any"} & set(values)) < 20  # drawn anew


def test_decoding_is_asked_of_every_pattern():
    asked = []
    assert decode_fp16.check(lambda pattern: asked.append(pattern) or decode(pattern, FP16)).state == "correct"
    assert set(asked) == set(range(2**16)) and len(asked) < 2**16 + 10


def test_one_wrong_pattern_of_65536_is_found():
    spoilt = random.randrange(2**16)
    outcome = decode_fp16.check(lambda pattern: 0.12345 if pattern == spoilt else decode(pattern, FP16))
    assert outcome.state == "not yet" and f"{spoilt:#06x} came out as 0.12345" in outcome.message


def test_what_was_right_once_is_wrong_the_next_time():
    """Numbers are drawn: a table of the answers to one check does not pass another."""
    for exercise, right in ((encode_fp16, answers.encoder()), (find_ulp, answers.u_right)):
        table = {}

        def learn(*given, right=right, table=table):
            table[given] = right(*given)
            return table[given]

        assert exercise.check(learn).state == "correct"
        assert exercise.check(lambda *given, table=table: table.get(given, 0)).state == "not yet"


def test_cut_keeps_the_upper_half():
    x = floats(np.array([0x3F80FFFF, 0xBF818000, 0x7F800001]))
    assert cut(x).view(torch.int16).int().bitwise_and(0xFFFF).tolist() == [0x3F80, 0xBF81, 0x7F80]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (2049.0, "2049"),
        (65519.99, "65519.99"),
        (0.25, "0.25"),
        (1e-3, "0.001"),
        (-0.0, "-0.0"),
        (-math.inf, "-inf"),
        (2.0**127, "2^127"),
        (2.0**-24, "2^-24"),
        (-(2.0**-9), "-2^-9"),
        (1.5 * 2**-15, "1.5 · 2^-15"),
    ],
)
def test_numbers_are_shown_as_a_reader_writes_them(value, words):
    assert show(value) == words


ODD = {
    "None": None,
    "text": "1.0",
    "bytes": b"\x00",
    "a list": [1],
    "an object": object(),
    "a class": int,
    "complex": 1j,
    "two numbers": torch.ones(2),
    "an array": np.zeros(3),
    "no numbers": torch.ones(0),
    "True": True,
    "NaN": math.nan,
    "inf": math.inf,
    "a huge int": 10**400,
    "a dict": {},
    "a dict of None": dict.fromkeys(("eps", "max", "smallest_normal", "smallest_subnormal")),
    "bool tensor": torch.tensor(True),
    "meta tensor": torch.ones(1, device="meta"),
    "a sparse tensor": torch.eye(2).to_sparse(),
}


@pytest.mark.parametrize("given", ODD.values(), ids=ODD.keys())
@pytest.mark.parametrize("exercise", ALL, ids=lambda exercise: exercise.name)
def test_odd_returns_are_told_clearly(exercise, given):
    def answer(*_):
        return given

    outcome = exercise.check({"differs": 1.1, "to_bf16": answer} if exercise is round_bf16 else answer)
    assert outcome.state == "not yet" and "could not continue" not in outcome.message
    if exercise is round_bf16:  # and in place of the number
        outcome = exercise.check({"differs": given, "to_bf16": answers.b_right})
        assert outcome.state == "not yet" and "could not continue" not in outcome.message


@pytest.mark.parametrize("exercise", [e for e in ALL if e is not round_bf16], ids=lambda exercise: exercise.name)
def test_an_answer_of_the_wrong_arity_is_told_so(exercise):
    outcome = exercise.check(lambda: 0.0)
    assert outcome.state == "not yet" and "other arguments than it takes" in outcome.message
