"""A new exercise works as it is written, and an answer can be tried from the command line."""

import importlib.util
import os
import shutil
import sys
from pathlib import Path

import nbformat
import pytest

from amp_course import authoring
from amp_course.authoring import writing
from amp_course.authoring.answers import filled

ROOT = Path(__file__).parents[1]


@pytest.fixture
def course(tmp_path, monkeypatch):
    """The files of chapter 06 that a new exercise is written into, copied."""
    for folder in ("amp_course/loop/exercises", "tests/exercises/loop", "solutions", "notebooks"):
        (tmp_path / folder).mkdir(parents=True)
    for file in ("amp_course/loop/exercises/__init__.py", "solutions/06_loop.ipynb"):
        shutil.copy(ROOT / file, tmp_path / file)
    monkeypatch.setenv("AMP_COURSE_ROOT", str(tmp_path))
    return tmp_path


def loaded(path, monkeypatch):
    """Import a file as a module, as a chapter would."""
    spec = importlib.util.spec_from_file_location(f"written_{path.parts[-4]}", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def test_a_new_exercise_works_as_it_is_written(course, capsys, monkeypatch):
    assert authoring.main(["new", "6", "twice_it"]) == 0
    written = [
        line.removeprefix("wrote ")
        for line in capsys.readouterr().out.splitlines()
        if "wrote" in line
    ]
    assert len(written) == 4 and all((course / file).is_file() for file in written)

    listed = (course / "amp_course/loop/exercises/__init__.py").read_text("utf-8")
    assert "exercises.twice_it import twice_it\n" in listed and listed.endswith(", twice_it)\n")
    compile(listed, "__init__.py", "exec")
    cells = nbformat.read(course / "solutions/06_loop.ipynb", as_version=4).cells
    assert (
        cells[-2].metadata.tags == ["answer-twice_it"] and cells[-3].source == "exercises.twice_it"
    )
    assert cells[-4].source == "## 8. Double it" and cells[-1].cell_type == "markdown"

    exercise = loaded(course / written[0], monkeypatch).twice_it
    answers = loaded(course / written[1], monkeypatch)
    assert (exercise.id, exercise.number) == ("loop.twice_it", 8) and len(exercise.mistakes) >= 4
    for mistake in exercise.mistakes:
        assert exercise.check(mistake.made_of(exercise.judge.right)).mistake == mistake.name
    for answer in answers.RIGHT.values():
        assert exercise.check(answer).state == "correct"
    for answer, name in answers.WRONG.values():
        outcome = exercise.check(answer)
        assert outcome.state == "not yet" and outcome.mistake == name


@pytest.mark.parametrize(
    ("chapter", "name", "printed"),
    [
        ("loop", "two words", "cannot name a function"),
        ("loop", "torch", "would hide Python's or a library's name"),
        ("99", "fine", "there is no chapter '99'"),
    ],
)
def test_a_name_that_will_not_do_is_refused(course, capsys, chapter, name, printed):
    assert authoring.main(["new", chapter, name]) == 1
    assert printed in capsys.readouterr().err
    (course / "amp_course/loop/exercises/taken.py").touch()
    assert authoring.main(["new", "loop", "taken"]) == 1


def test_an_answer_is_tried(tmp_path, capsys, monkeypatch):
    before = dict(os.environ)
    assert authoring.main(["try", "update_rule"]) == 0
    assert dict(os.environ) == before
    printed = capsys.readouterr().out
    assert "Correct." in printed and ", 0 are wrong" in printed
    file = tmp_path / "answer.py"
    file.write_text(
        "def mine(scale, streak, found, growth, backoff, interval):\n"
        "    return (scale * backoff, 0) if found else (scale, streak + 1)\n\n\n"
        "exercises.update_rule.check(mine)\n"
    )
    assert authoring.main(["try", "scaler.update_rule", str(file)]) == 0
    printed = capsys.readouterr().out
    assert "the mistake: grows late or never" in printed and "- … " in printed
    assert "and nothing found: the next scale is " in printed
    file.write_text("def update_rule(*state):\n    while True:\n        pass\n")
    monkeypatch.setattr(writing._exercise("update_rule"), "seconds", 0.5)
    assert authoring.main(["try", "update_rule", str(file)]) == 0
    assert "did not end, so there are no outputs" in capsys.readouterr().out
    assert authoring.main(["try", "no_such"]) == 1
    assert "'no_such' names no single exercise" in capsys.readouterr().err


MASTER = """\
class Mean:
    def __init__(self, size=3):
        \"\"\"Keep the size.\"\"\"
        ### BEGIN SOLUTION
        ### END SOLUTION

    def add(self, x):
        ### BEGIN SOLUTION
        old
        ### END SOLUTION


def ratio(x, y):
    \"\"\"Return x / y.\"\"\"
    ### BEGIN SOLUTION
    return old
    ### END SOLUTION


value = ...
### BEGIN SOLUTION
value = 3
### END SOLUTION
exercises.ratio.check(ratio)"""
FILE = """\
def right(x: float, y: float) -> float:
    # the ² is two bytes
    found: list[float] = [x / y]  # of x²
    return found[0]


class Mean:
    \"\"\"The right answer.\"\"\"

    def __init__(self, size: int) -> None:
        self.size: int = size

    def add(self, x: float) -> None:
        self._add(x, 1)

    def _add(self, x: float, n: int) -> None:
        pass


value = 4
"""


def test_a_solution_is_written_from_what_the_file_defines():
    made = filled(MASTER, FILE, "ratio")
    assert made == (
        MASTER.replace("BEGIN SOLUTION\n", "BEGIN SOLUTION\n        self.size = size\n", 1)
        .replace(
            "        old", "        self._add(x, 1)\n\n    def _add(self, x, n):\n        pass"
        )
        .replace(
            "    return old",
            "    # the ² is two bytes\n    found = [x / y]  # of x²\n    return found[0]",
        )
    )
    assert filled(made, FILE, "ratio") == made
    assert (
        filled(MASTER, FILE.replace("right", "reference").replace("Mean", "M"), "ratio") == MASTER
    )
