"""Every wrong answer gets its own diagnosis, every right one passes, every blank is "not attempted"."""

import importlib

import pytest
import torch

from amp_course.course import available
from amp_course.loop.exercises import add_autocast
from tests.conftest import DIAGNOSIS

CHAPTERS = [chapter for chapter in available() if chapter.exercises()]
EXERCISES = [exercise for chapter in CHAPTERS for exercise in chapter.exercises()]


def answers(kind):
    found = []
    for chapter in CHAPTERS:
        module = importlib.import_module(f"tests.exercises.answers.{chapter.word}")
        for exercise in chapter.exercises():
            for label, answer in getattr(module, kind)[exercise.name].items():
                found.append(pytest.param(exercise, label, answer, id=f"{exercise.id}-{label}"))
    return found


@pytest.mark.parametrize(("exercise", "mistake", "case"), answers("WRONG"))
def test_wrong_answer_is_told_why(exercise, mistake, case, record_property):
    answer, words = case
    outcome = exercise.check(answer)
    record_property(DIAGNOSIS, (exercise.id, mistake, outcome.message))
    assert outcome.state == "not yet"
    assert words in outcome.message


@pytest.mark.parametrize(("exercise", "label", "answer"), answers("RIGHT"))
def test_right_answer_passes(exercise, label, answer):
    for _ in range(3):  # inputs are drawn anew
        outcome = exercise.check(answer)
        assert outcome.state == "correct", outcome.message


@pytest.mark.parametrize(
    "exercise", [one for one in EXERCISES if one.takes == "function"], ids=lambda exercise: exercise.id
)
def test_an_answer_that_raises_is_told_so(exercise):
    def broken(*arguments, **named):
        raise KeyError("mine")

    outcome = exercise.check(broken)
    assert outcome.state == "not yet" and "KeyError" in outcome.message


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.id)
def test_enough_answers_are_kept(exercise):
    module = importlib.import_module(f"tests.exercises.answers.{exercise.chapter}")
    assert len(module.WRONG[exercise.name]) >= 4
    assert len(module.RIGHT[exercise.name]) >= 2


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.id)
def test_card_is_filled_in(exercise):
    assert 1 <= exercise.difficulty <= 5 and 1 <= exercise.importance <= 5
    assert len(exercise.hints) >= 2 and exercise.why and exercise.alternative
    assert exercise.solution().code


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.id)
def test_blank_is_not_attempted(exercise):
    def blank(*arguments):
        """A docstring is no attempt."""
        ...

    assert exercise.check(...).state == "not attempted"
    if exercise.takes == "function":
        assert exercise.check(blank).state == "not attempted"


def test_judging_is_not_fixed_to_one_draw():
    """A function that returns what was right once is wrong the next time: inputs are drawn anew."""
    seen = []

    def parrot(model, inputs, targets, loss_fn, optimizer):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_fn(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seen.append(loss.item())
        return seen[len(seen) % 5]

    assert add_autocast.check(parrot).state == "not yet"
