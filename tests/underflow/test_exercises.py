"""The checks of chapter 02 survive whatever an answer returns, draw new numbers each time,
and leave torch as it was.
"""

import pytest
import torch

from amp_course.underflow.exercises import ALL, lost_fraction, smallest_step, steady_sum
from tests.exercises.conftest import draw  # noqa: F401, a fixture: it plays what is ours once

ODD = [None, "text", 2.5, True, [], {"lost": 1}, torch.ones(2, 2), torch.tensor(1j)]


@pytest.mark.usefixtures("draw")
@pytest.mark.parametrize("exercise", ALL, ids=lambda exercise: exercise.name)
def test_odd_returns_are_told_in_words(exercise):
    for odd in ODD:
        outcome = exercise.check(lambda *arguments, odd=odd: odd)
        assert outcome.state == "not yet" and len(outcome.message) > 20, odd
        assert "Traceback" not in outcome.message, odd


@pytest.mark.parametrize("exercise", [lost_fraction, steady_sum], ids=lambda one: one.name)
def test_what_was_right_once_is_wrong_on_the_next_draw(exercise):
    answers = []

    def record(*arguments):
        answers.append(exercise.judge.right(*arguments))
        return answers[-1]

    assert exercise.check(record).state == "correct"
    outcomes = []
    for _ in range(8):  # one draw in sixteen is the same as the last
        replayed = iter(answers)
        outcomes.append(exercise.check(lambda *arguments, answers=replayed: next(answers)).state)
    assert "not yet" in outcomes


def test_finfo_is_back_after_a_check():
    before = torch.finfo
    smallest_step.check(smallest_step.judge.right)
    assert torch.finfo is before and torch.finfo(torch.float16).max == 65504
