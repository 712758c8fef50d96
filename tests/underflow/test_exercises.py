"""The checks of chapter 02 survive whatever an answer returns, draw new numbers each time,
and leave torch as it was.
"""

import pytest
import torch

from amp_course.underflow.exercises import (
    ALL,
    lost_fraction,
    smallest_step,
    steady_sum,
    stochastic_rounding,
)
from tests.exercises.conftest import draw  # noqa: F401, a fixture: it plays what is ours once

ODD = [
    None,
    "text",
    3,
    2.5,
    True,
    [],
    {},
    (1, 2),
    object(),
    torch.ones(2, 2),
    torch.tensor(3),
    torch.tensor(1j),
    {"lost": 1},
]


@pytest.mark.usefixtures("draw")
@pytest.mark.parametrize("exercise", ALL, ids=lambda exercise: exercise.name)
@pytest.mark.parametrize("odd", ODD, ids=lambda odd: type(odd).__name__ + str(odd)[:9])
def test_odd_returns_are_told_in_words(exercise, odd):
    outcome = exercise.check(lambda *arguments: odd)
    assert outcome.state == "not yet" and len(outcome.message) > 20
    assert "Traceback" not in outcome.message


@pytest.mark.parametrize(
    "exercise", [lost_fraction, steady_sum, stochastic_rounding], ids=lambda exercise: exercise.name
)
def test_what_was_right_once_is_wrong_on_the_next_draw(exercise):
    kept = []

    def record(*arguments):
        kept.append(exercise.judge.right(*arguments))
        return kept[-1]

    assert exercise.check(record).state == "correct"
    states = set()
    for _ in range(3):
        replayed = iter(kept)
        states.add(exercise.check(lambda *arguments, replayed=replayed: next(replayed)).state)
    assert "not yet" in states


def test_finfo_is_back_after_a_check():
    before = torch.finfo
    smallest_step.check(lambda dtype: torch.finfo(dtype).eps)
    smallest_step.check(smallest_step.judge.right)
    assert torch.finfo is before and torch.finfo(torch.float16).max == 65504
