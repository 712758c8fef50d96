"""Judging many answers to one exercise, with what is the course's own played once on each draw,
and not once for each answer.
"""

import inspect
from collections.abc import Callable, Generator
from typing import Any

import pytest

from amp_course.checking import Mistake
from amp_course.checking.judging import Case, Judge
from amp_course.distributed.ranks import cases_on_ranks

# (judge, mistake or "" for the right answer, seed) → its cases
_PLAYED: dict[tuple[int, str, int], list[Case]] = {}
_WRONG = (
    "test_each_mistake_is_told_as_itself_whatever_is_drawn",
    "test_wrong_answer_is_told_nothing_false",
    "test_an_answer_that_does_what_a_mistake_does_and_is_spelt_otherwise",
    "test_an_answer_that_raises_is_told_so",
)


@pytest.hookimpl(tryfirst=True)  # before the marks choose
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests of one exercise next to one another: then, of two processes, one plays what
    they share.

    Where each answer is played on ranks, in processes of their own, all but the right ones are of
    the slow part.
    """
    places = [place for place, item in enumerate(items) if item.path.name == "test_answers.py"]
    together = sorted((items[place] for place in places), key=lambda item: exercise_of(item).id)
    for place, item in zip(places, together, strict=True):
        items[place] = item
        names_used = vars(inspect.getmodule(exercise_of(item).judge.cases)).values()
        if cases_on_ranks in names_used and item.originalname in _WRONG:
            item.add_marker(pytest.mark.slow)


def exercise_of(item: pytest.Item) -> Any:
    return item.callspec.params["exercise"]  # type: ignore[attr-defined]


@pytest.fixture
def draw(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """A function that lets all checks from now on draw by a seed; at first it is 0."""
    run, run_mistake = Judge.run, Judge.run_mistake

    def remembered(self: Judge, answer: Any, seed: int) -> list[Case]:
        if answer is not self.right:
            return run(self, answer, seed)
        key = id(self), "", seed
        if key not in _PLAYED:
            _PLAYED[key] = run(self, answer, seed)
        return _PLAYED[key]

    def remembered_of_mistake(self: Judge, mistake: Mistake, seed: int) -> Generator[Case]:
        key = id(self), mistake.name, seed
        if key not in _PLAYED:
            _PLAYED[key] = list(run_mistake(self, mistake, seed))
        yield from _PLAYED[key]

    def draw(seed: int) -> None:
        monkeypatch.setattr("secrets.randbits", lambda bits: seed)

    monkeypatch.setattr(Judge, "run", remembered)
    monkeypatch.setattr(Judge, "run_mistake", remembered_of_mistake)
    draw(0)
    return draw
