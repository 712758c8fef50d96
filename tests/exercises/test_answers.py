"""Every known mistake is told as itself, every right answer passes, every blank is "not
attempted".
"""

import importlib
import inspect
import os
from collections.abc import Callable, Generator
from typing import Any

import pytest

from amp_course.checking import Exercise, Mistake
from amp_course.checking.judging import Case
from amp_course.course import available
from tests.conftest import DIAGNOSIS

EXERCISES = [exercise for chapter in available() for exercise in chapter.exercises()]
# Fixed cases decide and draws only add, so one will do from day to day; `make test-matrix` draws
# more often.
DRAWS = int(os.environ.get("AMP_COURSE_DRAWS", "0"))


def each_draw(count: int) -> pytest.MarkDecorator:
    more = (pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, count))
    return pytest.mark.parametrize("seed", [0, *more])


def each_exercise_and_draw() -> pytest.MarkDecorator:
    """Each exercise over DRAWS draws; by default over one, and every fourth over another, in the
    slow part.
    """
    drawn = [(exercise, seed) for exercise in EXERCISES for seed in range(DRAWS or 1)]
    drawn += [] if DRAWS else [(exercise, 1) for exercise in EXERCISES[::4]]
    cases = [
        pytest.param(
            exercise, seed, marks=[pytest.mark.slow] * (seed > 0), id=f"{exercise.id}-{seed}"
        )
        for exercise, seed in drawn
    ]
    return pytest.mark.parametrize(("exercise", "seed"), cases)


each_exercise = pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.id)


def answers(exercise: Exercise) -> Any:
    """The module of answers to an exercise that were written without a look at its table of
    mistakes.
    """
    return importlib.import_module(f"tests.exercises.{exercise.chapter}.{exercise.name}")


def of_all(kind: str) -> list[Any]:
    return [
        pytest.param(exercise, label, answer, id=f"{exercise.id}-{label}")
        for exercise in EXERCISES
        for label, answer in getattr(answers(exercise), kind, {}).items()
    ]


@pytest.mark.usefixtures("draw")
@each_exercise_and_draw()
def test_each_mistake_is_told_as_itself_whatever_is_drawn(
    exercise: Exercise, seed: int, record_property: Any
) -> None:
    judge = exercise.judge
    right = judge.run(judge.right, seed)

    def played(mistake: Mistake) -> Generator[Case]:
        yield from judge.run_mistake(mistake, seed)

    assert judge.explain(right, right, played) is None
    if right[-1].again:  # the first case, played once more at the end
        assert judge.explain(right[-1:], right[:1], played) is None
    for mistake in exercise.mistakes:
        # The later draws as in a check, which plays the answer on its own: in another folder, at
        # another time
        mine = judge.run(mistake.made_of(judge.right), seed) if seed else list(played(mistake))
        wrong = judge.explain(mine, right, played)
        assert wrong is not None, (
            f"{mistake.name!r} is right in every case: add a case that shows it, or drop it"
        )
        alike = f"{mistake.name!r} does what {wrong.mistake!r} does up to the first wrong output"
        alike += ": list another output first, or add evidence"
        assert wrong.mistake == mistake.name, f"{alike}. What it is told: {wrong}"
        if seed == 0:
            record_property(DIAGNOSIS, (exercise.id, mistake.name, str(wrong)))


@pytest.mark.usefixtures("draw")
@pytest.mark.parametrize(
    "exercise",  # of the others, a wrong answer is told so
    [each for each in EXERCISES if not any(mistake for _, mistake in answers(each).WRONG.values())],
    ids=lambda exercise: exercise.id,
)
def test_the_check_tells_a_mistake_as_the_judge_does(exercise: Exercise) -> None:
    mistake = exercise.mistakes[-1]
    outcome = exercise.check(mistake.made_of(exercise.judge.right))
    assert outcome.state == "not yet" and outcome.mistake == mistake.name


@each_draw(DRAWS or 1)
@pytest.mark.parametrize(("exercise", "label", "answer"), of_all("RIGHT"))
def test_right_answer_passes(
    exercise: Exercise, label: str, answer: Any, draw: Callable[[int], None], seed: int
) -> None:
    draw(seed)
    outcome = exercise.check(answer)
    assert outcome.state == "correct", outcome.message


@pytest.mark.usefixtures("draw")
@pytest.mark.parametrize(("exercise", "label", "case"), of_all("WRONG"))
def test_wrong_answer_is_told_nothing_false(
    exercise: Exercise, label: str, case: Any, record_property: Any
) -> None:
    answer, mistake = case  # None: no mistake of the table does the same, so no cause is named
    outcome = exercise.check(answer)
    record_property(DIAGNOSIS, (exercise.id, label, outcome.message))
    assert outcome.state == "not yet" and outcome.mistake == mistake, outcome.message


@pytest.mark.usefixtures("draw")
@pytest.mark.parametrize(("exercise", "label", "case"), of_all("SIBLINGS"))
def test_an_answer_that_does_what_a_mistake_does_and_is_spelt_otherwise(
    exercise: Exercise, label: str, case: Any
) -> None:
    """A story tells the effect: it is told to every answer that behaves like the mistake, and
    must be true of each.
    """
    answer, mistake, false = case  # the words that would be false of this answer
    outcome = exercise.check(answer)
    assert outcome.mistake == mistake and false not in outcome.message, outcome.message


@pytest.mark.usefixtures("draw")
@each_exercise
def test_an_answer_that_raises_is_told_so(exercise: Exercise) -> None:
    if exercise.takes != "function":
        return

    def broken(*arguments: Any, **named: Any) -> None:
        raise KeyError("mine")

    outcome = exercise.check(broken)
    assert outcome.state == "not yet" and "KeyError" in outcome.message


@each_exercise
def test_blank_is_not_attempted(exercise: Exercise) -> None:
    def blank(*arguments: Any) -> None:
        """A docstring is no attempt."""
        ...

    assert exercise.check(...).state == "not attempted"
    if exercise.takes == "function":
        assert exercise.check(blank).state == "not attempted"


@each_exercise
def test_an_exercise_is_complete(exercise: Exercise) -> None:
    assert 1 <= exercise.difficulty <= 5 and 1 <= exercise.importance <= 5
    assert len(exercise.hints) >= 2 and exercise.why and exercise.alternative
    assert exercise.name in exercise.task, "the card names what is to be written"
    assert len({one.name for one in exercise.mistakes}) == len(exercise.mistakes) >= 4
    assert len(answers(exercise).RIGHT) >= 3 and len(answers(exercise).WRONG) >= 3
    demands = [mistake.violates for mistake in exercise.mistakes if mistake.violates]
    assert demands, "no mistake says which words of the card it goes against"
    assert [words for words in demands if words not in exercise.task] == []
    module = importlib.import_module(f"amp_course.{exercise.chapter}.exercises")
    assert getattr(module, exercise.name) is exercise
    file = inspect.getsourcefile(exercise.judge.cases)
    assert file.endswith(f"{exercise.chapter}/exercises/{exercise.name}.py")
