"""Every exercise judges or refuses, in plain words, whatever a reader may pass to its check."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from amp_course.checking.exercise import Exercise
from tests.exercises.test_answers import EXERCISES

pytestmark = pytest.mark.slow  # `make test` would take too long with it


class Callable_:
    def __call__(self, *given: Any, **named: Any) -> None:
        return None

    def method(self, *given: Any, **named: Any) -> str:
        return "text"


class Inherited(Callable_):
    pass


def generator(*given: Any, **named: Any) -> Iterator[Any]:
    yield from given


async def coroutine(*given: Any, **named: Any) -> None:
    raise AssertionError("nobody waits for it")


def exits(*given: Any, **named: Any) -> None:
    raise SystemExit(3)


def turns_off_gradients(*given: Any, **named: Any) -> None:
    torch.set_grad_enabled(False)
    torch.set_default_dtype(torch.float16)


def returns(value: Any) -> Callable[..., Any]:
    return lambda *given, **named: value


ODD: dict[str, Any] = {
    "None": None,
    "a type of Python": int,
    "a lock": threading.Lock(),
    "an instance with __call__": Callable_(),
    "a bound method": Callable_().method,
    "a class whose code is inherited": Inherited,
    "a generator function": generator,
    "a coroutine function": coroutine,
    "a partial": functools.partial(generator, 1),
    "a lambda without parameters": lambda: 1.0,
    "a lambda that takes anything": lambda *given, **named: given,
    "a function that exits": exits,
    "a function that changes global state": turns_off_gradients,
    "it returns a huge int": returns(10**400),
    "it returns a meta tensor": returns(torch.zeros(2, device="meta")),
}


@pytest.mark.usefixtures("draw")
@pytest.mark.filterwarnings("ignore")  # a coroutine that nobody awaits
@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.id)
def test_odd_answers_are_refused_in_plain_words(exercise: Exercise, capsys: Any) -> None:
    # A third of them for each exercise; each is tried on some 26 exercises.
    for label, answer in [*ODD.items()][EXERCISES.index(exercise) % 3 :: 3]:
        outcome = exercise.check(answer)
        assert not outcome, label
        assert outcome.message and not any(
            text in str(outcome) for text in ("object at 0x", "judging.py", "amp_course/")
        ), f"{label}: {outcome}"
    assert torch.is_grad_enabled() and torch.get_default_dtype() == torch.float32
