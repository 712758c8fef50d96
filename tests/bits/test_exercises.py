"""The checks of chapter 01 survive whatever an answer returns, and ask for what they say."""

import math
import random

import numpy as np
import pytest
import torch

from amp_course.bits import FP16, decode, encode, ulp
from amp_course.bits.exercises import ALL, decode_fp16, encode_fp16, find_ulp, round_bf16
from amp_course.checking.differences import show_number
from tests.exercises.conftest import draw  # noqa: F401, a fixture: it plays what is ours once


def test_decoding_is_asked_of_every_pattern():
    asked = []
    assert (
        decode_fp16.check(lambda pattern: asked.append(pattern) or decode(pattern, FP16)).state
        == "correct"
    )
    assert set(asked) == set(range(2**16))


def test_one_wrong_pattern_of_65536_is_found():
    spoilt = random.randrange(2**16)
    outcome = decode_fp16.check(
        lambda pattern: 0.12345 if pattern == spoilt else decode(pattern, FP16)
    )
    assert (
        outcome.state == "not yet" and f"for 0x{spoilt:04X}, you return 0.12345" in outcome.message
    )


@pytest.mark.parametrize(
    ("exercise", "right"), [(encode_fp16, lambda x: encode(x, FP16)), (find_ulp, ulp)]
)
def test_what_was_right_once_is_wrong_the_next_time(exercise, right):
    """Numbers are drawn: a table of the answers to one check does not pass another."""
    table = {}

    def learn(*given):
        table[given] = right(*given)
        return table[given]

    assert exercise.check(learn).state == "correct"
    assert exercise.check(lambda *given: table.get(given, 0)).state == "not yet"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (2049.0, "2049"),
        (65519.99, "65519.99"),
        (1e-3, "0.001"),
        (-0.0, "-0.0"),
        (-math.inf, "-inf"),
        (2.0**127, "2^127"),
        (-(2.0**-24), "-2^-24"),
        (1.5 * 2**-15, "1.5 · 2^-15"),
    ],
)
def test_numbers_are_shown_as_a_reader_writes_them(value, words):
    assert show_number(value) == words


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


@pytest.mark.usefixtures("draw")
@pytest.mark.parametrize("given", ODD.values(), ids=ODD.keys())
@pytest.mark.parametrize("exercise", ALL, ids=lambda exercise: exercise.name)
def test_odd_returns_are_told_clearly(exercise, given):
    def answer(*_):
        return given

    outcome = exercise.check(
        {"differs": 1.1, "round_bf16": answer} if exercise is round_bf16 else answer
    )
    assert outcome.state == "not yet" and "could not continue" not in outcome.message
    if exercise is round_bf16:  # and in place of the number
        outcome = exercise.check({"differs": given, "round_bf16": torch.Tensor.bfloat16})
        assert outcome.state == "not yet" and "could not continue" not in outcome.message


@pytest.mark.parametrize(
    "exercise", [e for e in ALL if e is not round_bf16], ids=lambda exercise: exercise.name
)
def test_an_answer_of_the_wrong_arity_is_told_so(exercise):
    outcome = exercise.check(lambda: 0.0)
    assert outcome.state == "not yet" and "other arguments than it takes" in outcome.message
