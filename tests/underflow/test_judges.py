"""The judges survive whatever an answer returns, draw anew each time, and leave torch as it was."""

import pytest
import torch

from amp_course.underflow.exercises import ALL, lost_fraction, smallest_step, steady_sum, stochastic_rounding
from tests.exercises.answers import underflow as answers

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
    right = next(iter(answers.RIGHT[exercise.name].values()))
    kept = {}

    def parrot(*arguments):
        key = str(arguments[1]) if exercise is lost_fraction else str(arguments[0][0].dtype)
        return kept.setdefault(key, right(*arguments))

    exercise.check(parrot)
    # Two draws may be so much alike that one's result is right to a few roundings for the other: one time in a hundred.
    assert "not yet" in {exercise.check(parrot).state for _ in range(4)}


def test_finfo_is_back_after_a_check():
    before = torch.finfo
    smallest_step.check(answers.one_finfo)
    smallest_step.check(answers.one_right)
    assert torch.finfo is before and torch.finfo(torch.float16).max == 65504


def test_a_print_in_an_answer_does_not_count_as_asking_finfo(capsys):
    def prints(dtype):
        print(torch.ones(2, dtype=dtype) / 3)
        return answers.one_right(dtype)

    assert smallest_step.check(prints).state == "correct"
