"""An answer runs in an empty folder of its own, without keyboard input."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from amp_course.checking.workplace import workplace
from tests.checking.test_judging import feedback, right


def writes(x: float, y: float) -> float:
    Path("notes.txt").write_text("mine")
    torch.save({"x": x}, "model.pt")
    os.makedirs("runs/1", exist_ok=True)
    return 2 * (x + y)


def moves(x: float, y: float) -> float:
    os.makedirs("deeper", exist_ok=True)
    os.chdir("deeper")
    Path("left.txt").touch()
    return 2 * (x + y)


def deletes_its_folder(x: float, y: float) -> float:
    if "amp_course-" in os.getcwd():
        os.rmdir(os.getcwd())
        os.chdir("/")
    return 2 * (x + y)


@pytest.mark.parametrize("answer", [writes, moves, deletes_its_folder])
def test_files_and_folders_of_an_answer_are_gone(
    answer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    assert feedback(answer) is None
    assert Path.cwd() == tmp_path
    assert [*tmp_path.rglob("*")] == [tmp_path / "temporary"]


def test_an_answer_finds_an_empty_folder() -> None:
    with workplace():
        assert os.listdir() == []


def test_a_folder_that_is_gone_stops_no_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (gone := tmp_path / "gone").mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert feedback(right) is None


@pytest.mark.parametrize(
    "read",
    [
        lambda: input("which? "),
        lambda: sys.stdin.readline(),
        lambda: sys.stdin.read(),
        lambda: next(sys.stdin),
    ],
)
def test_an_answer_that_reads_what_is_typed_is_recognized(read: Callable[[], Any]) -> None:
    was = sys.stdin, input
    wrong = feedback(lambda x, y: read())
    assert "EOFError (nobody types while a check runs)" in str(wrong)
    assert "take what you need from the arguments" in str(wrong)
    assert (sys.stdin, input) == was


def test_modules_of_the_learner_can_be_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """IPython finds them in the current folder, by the empty string in `sys.path`."""
    (tmp_path / "module_of_a_learner.py").write_text("double = 2.0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    monkeypatch.delitem(sys.modules, "module_of_a_learner", raising=False)
    path = sys.path

    def imports(x: float, y: float) -> float:
        from module_of_a_learner import double

        return double * (x + y)

    assert feedback(imports) is None
    assert sys.path is path and path[0] == ""
