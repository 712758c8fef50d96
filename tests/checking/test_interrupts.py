"""Ctrl-C at each moment of a check: one sentence, nothing recorded, everything put back."""

import contextlib
import random
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from amp_course.checking import (
    Case,
    Exercise,
    Mistake,
    call_answer,
    differences,
    judging,
    progress,
    sandbox,
)
from amp_course.checking.outcome import Interrupted, Outcome
from tests.checking.conftest import shared_state

Make = Callable[..., Exercise]


def interrupt(*_: Any, **__: Any) -> None:
    signal.raise_signal(signal.SIGINT)


def after(function: Any) -> Any:
    """Return a function that does the same, and is interrupted as it ends."""

    def interrupted(*arguments: Any, **named: Any) -> Any:
        result = function(*arguments, **named)
        interrupt()
        return result

    return interrupted


def before(function: Any) -> Any:
    """Return a function that is interrupted as it begins, and does the same."""

    def interrupted(*arguments: Any, **named: Any) -> Any:
        interrupt()
        return function(*arguments, **named)

    return interrupted


def changes_all(x: float) -> float:
    torch.set_default_dtype(torch.float64)
    torch.autocast("cpu").__enter__()
    Path("left.txt").touch()
    return 5 * x


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    for x in (1.0, 2.0):
        yield Case("", {"the result": call_answer(answer, "", x)})


# What is interrupted: (a module or class, a name in it)
MOMENTS: dict[str, tuple[Any, str]] = {
    "while the state is read": (sandbox, "random_state"),
    "while the state is put back": (sandbox, "_put_back"),
    "in a call of the answer": (sys.modules[__name__], "call_answer"),
    "as a time limit begins": (judging, "within"),
    "while results are compared": (judging, "alike"),
    "while a message is written": (differences, "_distinct_texts"),
    "as the temporary folder goes": (judging, "workplace"),
    "before the result is recorded": (progress, "_in_solutions"),
    "while the progress is read": (progress, "_parse"),
    "as the progress file is locked": (progress, "locked"),
}


@pytest.fixture
def exercise(make: Make) -> Exercise:
    mistake = Mistake("triples", "you triple it", lambda x: 3 * x)
    one = make(name="doubled", right=lambda x: 2 * x, cases=cases, mistakes=[mistake])
    one.check(lambda x: 5 * x)  # so that there is progress
    return one


@pytest.mark.parametrize("when", [before, after])
@pytest.mark.parametrize("moment", MOMENTS)
def test_ctrl_c_at_any_moment(
    exercise: Exercise,
    moment: str,
    when: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    capsys.readouterr()
    kept, state, folder = progress.progress_file().read_bytes(), shared_state(), Path.cwd()
    module, name = MOMENTS[moment]
    with monkeypatch.context() as patch:
        patch.setattr(module, name, when(getattr(module, name)))
        with pytest.raises(Interrupted) as raised:
            exercise.check(changes_all)
    assert (
        str(raised.value) == "Interrupted; nothing was recorded." and capsys.readouterr().out == ""
    )
    assert raised.value.__cause__ is None and raised.value.__suppress_context__
    assert progress.progress_file().read_bytes() == kept
    assert (shared_state(), Path.cwd()) == (state, folder)
    assert exercise.check(lambda x: 2 * x)  # and nothing of the interrupted check comes later
    assert progress.load().history(exercise.id)["attempts"] == 2


@pytest.mark.parametrize(("module", "name"), [(progress, "write_text"), (Outcome, "show")])
def test_ctrl_c_once_the_result_is_written_is_too_late(
    exercise: Exercise, module: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(module, name, before(getattr(module, name)))
        assert exercise.check(lambda x: 2 * x)
    assert progress.load().history(exercise.id)["attempts"] == 2
    with pytest.raises(KeyboardInterrupt):
        interrupt()


def test_an_answer_that_swallows_ctrl_c_is_interrupted_when_it_ends(exercise: Exercise) -> None:
    def swallows(x: float) -> float:
        with contextlib.suppress(BaseException):
            interrupt()
        return 2 * x

    with pytest.raises(Interrupted):
        exercise.check(swallows)
    assert progress.load().history(exercise.id)["attempts"] == 1
