"""An exercise's other verbs, its card, and the notes on an outcome."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.checking.conftest import Make

pytestmark = pytest.mark.usefixtures("unchanged")


def test_a_leak_makes_a_right_answer_not_yet(make: Make) -> None:
    outcome = make().check(lambda: torch.set_default_dtype(torch.float64))
    assert outcome.state == "not yet"
    assert outcome.message.startswith(
        "your code leaves the default dtype at torch.float64 (it was torch.float32)"
    )
    assert outcome.notes == ()


def test_leaks_beside_an_error_are_notes(make: Make) -> None:
    def fails() -> None:
        torch.set_grad_enabled(False)
        torch.manual_seed(torch.initial_seed() + 1)
        raise ValueError("no")

    outcome = make().check(fails)
    assert outcome.message.startswith("your code raised ValueError (no)")
    assert len(outcome.notes) == 2
    assert outcome.notes[0].startswith("Your code leaves gradients switched off")
    assert outcome.notes[1].startswith("your code seeds the global random generator")


def test_a_remark_leaves_a_right_answer_correct(make: Make) -> None:
    outcome = make().check(lambda: torch.manual_seed(torch.initial_seed() + 1))
    assert outcome.state == "correct"
    assert len(outcome.notes) == 1
    assert outcome.notes[0].startswith("your code seeds")


def test_what_an_answer_prints_and_warns_of_is_shown(
    make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    def prints() -> None:
        for n in range(2000):
            print(n)

    with pytest.warns(UserWarning, match="from the answer"):
        assert make().check(lambda: (prints(), warnings.warn("from the answer", stacklevel=1)))
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2000] == [str(n) for n in range(2000)]
    assert lines[2000:] == ["Correct. because.", "Also right: something else."]


def test_a_failure_to_save_progress_is_a_note(make: Make, work: Path) -> None:
    work.write_text("a file where the folder should be")
    outcome = make().check(lambda: 1)
    assert outcome.state == "correct" and "progress could not be saved" in outcome.notes[0]


def test_hints_come_one_by_one(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    exercise = make()
    heads, lines = zip(
        *((note.head, note.lines) for note in (exercise.hint() for _ in range(4))), strict=True
    )
    assert heads == (
        "Hint 1 of 3 (2 more)",
        "Hint 2 of 3 (1 more)",
        "Hint 3 of 3 (that was the last; `exercises.probe.solution()` shows an answer)",
        "Hint 3 of 3 (that was the last; `exercises.probe.solution()` shows an answer)",
    )
    assert lines[0] == ("1. look",)
    assert lines[2] == lines[3] == ("1. look", "2. look closer", "3. it is this")
    assert "Hint 1 of 3 (2 more)\n1. look\nHint 2 of 3" in capsys.readouterr().out
    assert make().hint().lines == ("1. look",)


def test_solution_shows_code_and_alternative(
    make: Make, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr("amp_course.checking.exercise.solution_code", lambda *of: f"# {of}")
    note = make().solution()
    assert note.code == "# ('loop', 'probe')"
    said = "One answer to “Probe”\nAlso right: something else.\n# ('loop', 'probe')\n"
    assert capsys.readouterr().out == said


def test_card(make: Make) -> None:
    exercise = make(task="Keep x < 3 in `f`.")
    facts = "difficulty ●●○○○ · importance ●●●○○ · 5 minutes · about 1 line"
    assert repr(exercise) == f"Exercise 1: Probe\n{facts}\nKeep x < 3 in `f`."
    assert facts in exercise._repr_html_()
    assert "Keep x &lt; 3 in <code>f</code>." in exercise._repr_html_()
