"""What was replaced shows, wherever it is; what only works does not."""

from __future__ import annotations

import math
import types
from pathlib import Path
from typing import Any

import pytest
import torch

import amp_course.checking.differences as differences
import amp_course.checking.judging as judging
from amp_course.checking import Exercise, Outcome
from amp_course.classroom.integrity import fingerprint, replaced
from amp_course.course import CHAPTERS, Chapter, find

SCALER = find("loop").exercises()[2]


EXERCISES = find("loop").exercises()


@pytest.mark.slow
@pytest.mark.parametrize(
    "chapter",
    [chapter for chapter in CHAPTERS if chapter.word != "distributed"],
    ids=lambda one: one.word,
)
def test_checks_that_work_change_nothing(
    chapter: Chapter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AMP_COURSE_WORK", str(tmp_path))
    exercises = chapter.exercises()
    before = fingerprint(exercises)
    for exercise in exercises:
        assert exercise.check(exercise.judge.right).state == "correct"
        exercise.hint()
    assert replaced(before, exercises) == []


def always(*_: Any, **__: Any) -> bool:
    return True


WAYS: dict[str, tuple[Any, str, Any]] = {
    "Exercise.check": (Exercise, "check", lambda self, answer=...: Outcome("correct", "")),
    "judge": (SCALER, "judge", lambda *answer: None),
    "judge.right": (SCALER.judge, "right", lambda *a: None),
    "judge.mistakes": (SCALER.judge, "mistakes", ()),
    "judging.alike": (judging, "alike", always),
    "alike.__code__": (differences.alike, "__code__", always.__code__),
    "alike.__defaults__": (differences.alike, "__defaults__", (1e9,)),
    "Outcome.__bool__": (Outcome, "__bool__", always),
    "torch.isclose": (torch, "isclose", lambda *a, **k: torch.tensor(True)),
    "torch.Tensor.isnan": (torch.Tensor, "isnan", lambda *a: torch.tensor(True)),
    "math.isclose": (math, "isclose", always),
}


@pytest.fixture(scope="module")
def before() -> dict[str, Any]:
    return fingerprint(EXERCISES)


@pytest.mark.parametrize("way", WAYS)
def test_a_replaced_part_shows(way: str, before: dict[str, Any]) -> None:
    owner, name, value = WAYS[way]
    old = getattr(owner, name)
    set_on = type.__setattr__ if isinstance(owner, type) else object.__setattr__
    set_on(owner, name, value)  # a judge is frozen
    try:
        found = replaced(before, EXERCISES)
    finally:
        set_on(owner, name, old)
    assert any(path.endswith(way) for path in found), found
    assert replaced(before, EXERCISES) == []


def test_what_people_wrap_add_or_change_does_not_count(
    before: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.Tensor, "__repr__", lambda self: "short")
    monkeypatch.setattr(torch.nn.Linear, "forward", lambda self, x: x)
    monkeypatch.setattr(torch.Tensor, "mine", lambda self: self, raising=False)
    monkeypatch.setattr("amp_course.loop.mine", types.SimpleNamespace(), raising=False)
    monkeypatch.setattr("builtins.print", lambda *a, **k: None)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    assert replaced(before, EXERCISES) == []
