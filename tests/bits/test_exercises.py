"""The checks of chapter 01 survive whatever an answer returns, and ask for what they say."""

import math
import random

import pytest
import torch

from amp_course.bits import FP16, decode, encode, ulp
from amp_course.bits.exercises import ALL, decode_fp16, encode_fp16, find_ulp, round_bf16
from amp_course.checking.differences import show_number
from tests.exercises.conftest import draw  # noqa: F401, a fixture: it plays what is ours once


def test_one_wrong_pattern_of_65536_is_found():
    corrupted = random.randrange(2**16)
    outcome = decode_fp16.check(
        lambda pattern: 0.12345 if pattern == corrupted else decode(pattern, FP16)
    )
    words = f"for 0x{corrupted:04X}, you return 0.12345"
    assert outcome.state == "not yet" and words in outcome.message


@pytest.mark.parametrize(
    ("exercise", "right"), [(encode_fp16, lambda x: encode(x, FP16)), (find_ulp, ulp)]
)
def test_what_was_right_once_is_wrong_the_next_time(exercise, right):
    """Numbers are drawn: a table of the answers to one check does not pass another."""
    table = {}

    def learn(*arguments):
        table[arguments] = right(*arguments)
        return table[arguments]

    assert exercise.check(learn).state == "correct"
    assert exercise.check(lambda *arguments: table.get(arguments, 0)).state == "not yet"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (2049.0, "2049"),
        (1e-3, "0.001"),
        (-math.inf, "-inf"),
        (-(2.0**-24), "-2^-24"),
        (1.5 * 2**-15, "1.5 · 2^-15"),
    ],
)
def test_numbers_are_shown_as_a_reader_writes_them(value, words):
    assert show_number(value) == words


ODD = [None, "1.0", [1], 1j, True, math.nan, 10**400, {}, torch.ones(2), torch.ones(0)]


@pytest.mark.usefixtures("draw")
@pytest.mark.parametrize("exercise", ALL, ids=lambda exercise: exercise.name)
def test_odd_returns_are_told_clearly(exercise):
    for value in ODD:

        def answer(*_, value=value):
            return value

        answers = [answer]
        if exercise is round_bf16:  # and in place of the number
            answers = [
                {"differs": 1.1, "round_bf16": answer},
                {"differs": value, "round_bf16": torch.Tensor.bfloat16},
            ]
        for one in answers:
            outcome = exercise.check(one)
            assert outcome.state == "not yet", value
            assert "could not continue" not in outcome.message, value


@pytest.mark.parametrize(
    "exercise", [e for e in ALL if e is not round_bf16], ids=lambda exercise: exercise.name
)
def test_an_answer_of_the_wrong_arity_is_told_so(exercise):
    outcome = exercise.check(lambda: 0.0)
    assert outcome.state == "not yet" and "other arguments than it takes" in outcome.message
