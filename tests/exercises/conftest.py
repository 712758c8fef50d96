"""Judging many answers to one exercise, with what is the course's own played once on each draw, and not once for each answer."""

import inspect
from collections.abc import Callable, Generator
from typing import Any

import pytest

from amp_course.checking import Mistake
from amp_course.checking.judging import Judge, Turn
from amp_course.distributed.ranks import turns_on_ranks

_PLAYED: dict[tuple[int, str, int], list[Turn]] = {}  # (judge, mistake or "" for the right answer, seed) → its turns


@pytest.hookimpl(tryfirst=True)  # before the marks choose
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests of one exercise next to one another: then, of two processes, one plays what they share.

    Where each answer is played on ranks, in processes of their own, those tests that play many are of the slow part.
    """
    places = [place for place, item in enumerate(items) if item.path.name == "test_answers.py"]
    together = sorted((items[place] for place in places), key=lambda item: exercise_of(item).id)
    for place, item in zip(places, together, strict=True):
        items[place] = item
        plays_many = "whatever_is_drawn" in item.name or "told_nothing_false" in item.name
        if plays_many and turns_on_ranks in vars(inspect.getmodule(exercise_of(item).judge.play)).values():
            item.add_marker(pytest.mark.slow)


def exercise_of(item: pytest.Item) -> Any:
    return item.callspec.params["exercise"]  # type: ignore[attr-defined]


@pytest.fixture
def draw(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """A function that lets all checks from now on draw by a seed; at first it is 0."""
    turns, turns_of_mistake = Judge.turns, Judge.turns_of_mistake

    def remembered(self: Judge, answer: Any, seed: int) -> list[Turn]:
        if answer is not self.right:
            return turns(self, answer, seed)
        key = id(self), "", seed
        if key not in _PLAYED:
            _PLAYED[key] = turns(self, answer, seed)
        return _PLAYED[key]

    def remembered_of_mistake(self: Judge, mistake: Mistake, seed: int) -> Generator[Turn]:
        key = id(self), mistake.name, seed
        if key not in _PLAYED:
            _PLAYED[key] = list(turns_of_mistake(self, mistake, seed))
        yield from _PLAYED[key]

    def draw(seed: int) -> None:
        monkeypatch.setattr("secrets.randbits", lambda bits: seed)

    monkeypatch.setattr(Judge, "turns", remembered)
    monkeypatch.setattr(Judge, "turns_of_mistake", remembered_of_mistake)
    draw(0)
    return draw
