"""Assignments: every exercise with an answer's cell and a cell with points,
and nothing of the answers in what is handed out.
"""

from __future__ import annotations

import types
from pathlib import Path

import nbformat
import pytest

from amp_course.checking import Outcome
from amp_course.classroom.assignment import (
    TEST,
    digest,
    has_exercises,
    named,
    source_notebook,
    tasks_of,
)
from amp_course.classroom.folder import ClassFolder
from amp_course.course import CHAPTERS, Chapter
from amp_course.kit.errors import CourseError

WITH_EXERCISES = [chapter for chapter in CHAPTERS if has_exercises(chapter)]


@pytest.mark.parametrize("chapter", WITH_EXERCISES, ids=lambda chapter: chapter.word)
def test_every_exercise_has_its_cells(chapter: Chapter) -> None:
    book = source_notebook(chapter)
    nbformat.validate(book)
    marks = {
        cell.metadata.nbgrader.grade_id: cell for cell in book.cells if "nbgrader" in cell.metadata
    }
    names = [exercise.name for exercise in chapter.exercises()]
    assert [task.exercise.name for task in tasks_of(chapter)] == names
    assert set(marks) == {*names, *(TEST + name for name in names)}
    for exercise in chapter.exercises():
        answer, points = marks[exercise.name], marks[TEST + exercise.name]
        assert book.cells.index(points) == book.cells.index(answer) + 1
        assert answer.metadata.nbgrader.solution and not answer.metadata.nbgrader.grade
        assert points.metadata.nbgrader.points == exercise.difficulty > 0
        assert (
            ".check(" not in answer.source
            and points.source.count(f"exercises.{exercise.name}.check(") == 1
        )
    assert "](../" not in "".join(
        cell.source for cell in book.cells
    )  # there is no such folder where it is handed out


@pytest.mark.parametrize(
    ("state", "earns"), [("correct", True), ("not yet", False), ("not attempted", False)]
)
def test_the_cell_with_points_raises_unless_the_answer_is_correct(state: str, earns: bool) -> None:
    cell = next(
        one
        for one in source_notebook(named("loop")).cells
        if one.metadata.get("nbgrader", {}).get("grade")
    )
    probe = types.SimpleNamespace(check=lambda answer: Outcome(state, "why"))  # type: ignore[arg-type]
    space = {"exercises": types.SimpleNamespace(honest_timing=probe), "honest_timing": None}
    if earns:
        exec(cell.source, space)
    else:
        with pytest.raises(AssertionError, match="no points yet"):
            exec(cell.source, space)


def test_what_is_handed_out_holds_no_answer(place: ClassFolder) -> None:
    for chapter in place.chapters():
        source, release = (
            nbformat.read(path, as_version=4)
            for path in (place.source(chapter), place.release(chapter))
        )
        text = Path(place.release(chapter)).read_text()
        assert "BEGIN SOLUTION" not in text and text.count("# your code here") >= len(
            chapter.exercises()
        )
        assert digest(release) == digest(source) == release.metadata.amp_course.digest
        assert all(not cell.get("outputs") for cell in release.cells)


def test_a_chapter_without_exercises_and_one_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(CourseError, match="there is no chapter"):
        named("loops")
    monkeypatch.setattr("amp_course.classroom.assignment.has_exercises", lambda chapter: False)
    with pytest.raises(CourseError, match="06_loop has no exercises to hand out"):
        named("6")
