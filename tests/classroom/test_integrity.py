"""What was replaced shows, wherever it is; what only works does not."""

from __future__ import annotations

import contextlib
import math
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

import amp_course.checking.differences as differences
import amp_course.checking.judging as judging
from amp_course.checking import Exercise, Outcome
from amp_course.classroom.integrity import fingerprint, replaced
from amp_course.course import CHAPTERS, Chapter, find

SETTLED = [
    torch.optim.SGD([torch.zeros(1)]),
    torch.optim.Adam([torch.zeros(1)]),
    torch.optim.AdamW([torch.zeros(1)]),
]
SCALER = find("loop").exercises()[2]


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
    before = fingerprint()
    for exercise in exercises:
        assert isinstance(exercise.judge, judging.Judge)
        assert exercise.check(exercise.judge.right).state == "correct"
        exercise.hint()
    assert replaced(before) == []


@contextlib.contextmanager
def frozen(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Replace what an ordinary assignment cannot, or `patch` cannot put back."""
    old = getattr(owner, name)
    object.__setattr__(owner, name, value)
    try:
        yield
    finally:
        object.__setattr__(owner, name, old)


def always(*_: Any, **__: Any) -> bool:
    return True


is_instance = isinstance
WAYS: dict[str, contextlib.AbstractContextManager[Any]] = {
    "Exercise.check": patch.object(
        Exercise, "check", lambda self, answer=...: Outcome("correct", "")
    ),
    "Exercise._judge_safely": patch.object(
        Exercise, "_judge_safely", lambda *a: Outcome("correct", "")
    ),
    "ALL[2].judge": patch.object(SCALER, "judge", lambda answer: None),
    "ALL[2].judge.right": frozen(SCALER.judge, "right", lambda *a: None),
    "ALL[2].judge.mistakes": frozen(SCALER.judge, "mistakes", ()),
    "judging.alike": patch.object(judging, "alike", always),
    "alike.__code__": frozen(differences.alike, "__code__", always.__code__),
    "alike.__defaults__": frozen(differences.alike, "__defaults__", (1e9,)),
    "Outcome.__bool__": patch.object(Outcome, "__bool__", always),
    "torch.isclose": patch.object(torch, "isclose", lambda *a, **k: torch.tensor(True)),
    "torch.Tensor.isnan": patch.object(torch.Tensor, "isnan", lambda *a: torch.tensor(True)),
    "math.isclose": patch.object(math, "isclose", always),
    "Exercise.__getattribute__": patch.object(
        Exercise, "__getattribute__", lambda self, name: object.__getattribute__(self, name)
    ),
    "judging.isinstance": patch.object(
        judging, "isinstance", lambda *a: is_instance(*a), create=True
    ),
    "builtins.isinstance": patch("builtins.isinstance", lambda *a: is_instance(*a)),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_replaced_part_shows(way: str) -> None:
    before = fingerprint()
    assert replaced(before) == []
    with WAYS[way]:
        found = replaced(before)
    assert any(path.endswith(way) for path in found), found
    assert replaced(before) == []


def test_what_people_wrap_or_change_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint()
    monkeypatch.setattr(torch.Tensor, "__repr__", lambda self: "short")
    monkeypatch.setattr(torch.nn.Linear, "forward", lambda self, x: x)
    monkeypatch.setattr("builtins.print", lambda *a, **k: None)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    torch.set_default_dtype(torch.float64)
    try:
        assert replaced(before) == []
    finally:
        torch.set_default_dtype(torch.float32)


def test_what_is_new_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint()
    monkeypatch.setattr(torch.Tensor, "mine", lambda self: self, raising=False)
    monkeypatch.setattr("amp_course.loop.mine", types.SimpleNamespace(), raising=False)
    assert replaced(before) == []
