"""The gates of exercises and solutions: every solution is correct, every blank not attempted, no
stray files.
"""

import functools
import json
from pathlib import Path

import nbformat
import pytest

from amp_course import authoring
from amp_course.course import available

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = [chapter for chapter in available() if chapter.exercises()]
EXERCISES = [(chapter, exercise) for chapter in CHAPTERS for exercise in chapter.exercises()]
IDS = [exercise.id for _, exercise in EXERCISES]


@functools.cache
def book(folder, chapter):
    return nbformat.read(ROOT / folder / f"{chapter.stem}.ipynb", as_version=4)


def answer_cell(chapter, exercise):
    (found,) = [
        c
        for c in book("solutions", chapter).cells
        if f"answer-{exercise.name}" in c.metadata.get("tags", [])
    ]
    return found


def test_ids_and_numbers_are_in_order():
    assert len(set(IDS)) == len(IDS)
    for chapter in CHAPTERS:
        assert [exercise.number for exercise in chapter.exercises()] == list(
            range(1, len(chapter.exercises()) + 1)
        )
        assert all(exercise.chapter == chapter.word for exercise in chapter.exercises())


@pytest.mark.parametrize(("chapter", "exercise"), EXERCISES, ids=IDS)
def test_the_stored_solution_is_correct_and_what_the_verb_shows(chapter, exercise):
    cell = answer_cell(chapter, exercise)
    assert cell.outputs, "it was not run: `make notebooks`"
    assert len(cell.outputs) == 1 and cell.outputs[0].data["text/plain"].startswith("Correct.")
    shown = exercise.solution().code
    assert "SOLUTION" not in shown and f"{exercise.name}.check" not in shown and shown.strip()


@pytest.mark.usefixtures("draw")
@pytest.mark.parametrize(("chapter", "exercise"), EXERCISES, ids=IDS)
def test_the_blank_is_not_attempted_and_the_solution_correct(chapter, exercise):
    master = answer_cell(chapter, exercise)
    blank = next((c for c in book("exercises", chapter).cells if c.id == master.id), None)
    assert blank is not None, "it is not in exercises/: `make exercises`"
    cells = [cell.source for cell in book("solutions", chapter).cells]
    setup = "\n".join(cell for cell in cells if cell.startswith(("import ", "from ")))
    for source, state in ((master.source, "correct"), (blank.source, "not attempted")):
        before, _, check = source.rpartition("\n")
        names = {}
        exec(compile(f"{setup}\n{before}\nresult = {check}", "cell", "exec"), names)
        assert names["result"].state == state


def test_regenerating_changes_nothing():
    assert authoring.problems() == []


def test_a_changed_and_a_stray_exercise_are_found(tmp_path, monkeypatch):
    for folder in ("notebooks", "exercises", "solutions"):
        (tmp_path / folder).mkdir()
    for path in (ROOT / "solutions").glob("*.ipynb"):
        (tmp_path / "solutions" / path.name).write_bytes(path.read_bytes())
    monkeypatch.setenv("AMP_COURSE_ROOT", str(tmp_path))
    assert len(authoring.problems()) == len(CHAPTERS)  # nothing made yet
    assert authoring.main(["make"]) == 0 and authoring.problems() == []
    (tmp_path / "exercises" / "99_stray.ipynb").write_text("{}")
    made = tmp_path / "exercises" / f"{CHAPTERS[-1].stem}.ipynb"
    made.write_text(made.read_text().replace("# your code here", "pass"))
    problems = authoring.problems()
    assert any("99_stray" in problem for problem in problems) and any(
        made.name in problem for problem in problems
    )
    assert authoring.main(["check"]) == 1


def test_a_blank_has_something_to_read_before_it():
    for chapter in CHAPTERS:
        cells = book("exercises", chapter).cells
        for exercise in chapter.exercises():
            cards = [
                n
                for n, c in enumerate(cells)
                if c.cell_type == "code" and c.source.strip() == f"exercises.{exercise.name}"
            ]
            assert len(cards) == 1, f"{exercise.id}: its card is shown once"


def test_masters_are_in_nbgraders_form():
    for path in (ROOT / "solutions").glob("*.ipynb"):
        text = "\n".join("".join(c["source"]) for c in json.loads(path.read_text())["cells"])
        assert text.count("### BEGIN SOLUTION") == text.count("### END SOLUTION") > 0
