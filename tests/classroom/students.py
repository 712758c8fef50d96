"""What students hand in, for tests: notebooks made from the assignment, with answers as source."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from amp_course.checking.solutions import BEGIN, END
from amp_course.classroom import gradebook
from amp_course.classroom.folder import ClassFolder
from amp_course.course import Chapter

SETUP = "### an extra cell"


def right_answers(place: ClassFolder, chapter: Chapter) -> dict[str, str]:
    """Return exercise → the source of the course's own answer."""
    book = nbformat.read(place.source(chapter), as_version=4)
    return {
        cell.metadata.nbgrader.grade_id: cell.source.replace(BEGIN, "").replace(END, "")
        for cell in book.cells
        if cell.metadata.get("nbgrader", {}).get("solution")
    }


def mistaken(name: str, number: int) -> str:
    """Return source that makes a known mistake of an exercise: the course builds it."""
    return f"_of = exercises.{name}\n{name} = _of.mistakes[{number}].made_of(_of.judge.right)\n"


def notebook(
    place: ClassFolder,
    chapter: Chapter,
    answers: Mapping[str, str],
    first: str = "",
    last: str = "",
) -> NotebookNode:
    """Return the assignment with answers, and perhaps a cell of the student's own at the
    beginning or the end.
    """
    book = nbformat.read(place.release(chapter), as_version=4)
    for cell in book.cells:
        name = cell.metadata.get("nbgrader", {}).get("grade_id", "")
        if name in answers:
            cell.source = answers[name]
    if first:
        after_imports = (
            next(number for number, cell in enumerate(book.cells) if cell.cell_type == "code") + 1
        )
        book.cells.insert(after_imports, nbformat.v4.new_code_cell(first))
    if last:
        book.cells.append(nbformat.v4.new_code_cell(last))
    return book


def hand_in(
    place: ClassFolder, chapter: Chapter, student: str, what: NotebookNode | str | bytes
) -> Path:
    """Put something into `submitted/`; returns the file."""
    file = place.root / "submitted" / student / chapter.stem / f"{chapter.stem}.ipynb"
    file.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(what, bytes):
        file.write_bytes(what)
    else:
        file.write_text(what if isinstance(what, str) else json.dumps(what), encoding="utf-8")
    return file


def points(root: Path, name: str) -> dict[str, dict[str, float]]:
    """Return student → cell → points as the gradebook has them, given by hand or not."""
    with gradebook._open(root) as (book, _):
        return {
            submission.student.id: {
                grade.cell.name: float(grade.score)
                for notebook in submission.notebooks
                for grade in notebook.grades
            }
            for submission in book.find_assignment(name).submissions
        }
