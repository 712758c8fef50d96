"""Make an nbgrader assignment of a chapter's exercises: for each, a cell for the answer and one for
the points.

nbgrader gives a cell its points unless it raises, and `exercises.x.check(f)` alone never does. So
the cell with the points asserts the outcome.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from amp_course import __version__
from amp_course.checking import Exercise
from amp_course.course import Chapter, find
from amp_course.kit.errors import CourseError
from amp_course.kit.markup import counted
from amp_course.kit.paths import course_root

TEST = "points-"  # the cell with an exercise's points: "points-add_autocast"
_HAND_OUT = """\
Write each answer where it says `# your code here`, and run the cell below it: it checks the answer,
tells you what it does, and holds the points. As long as the answer is not correct, that cell ends
with a red `AssertionError`, which is normal; and “Run All” stops there. These cells are put back
before grading, so changing them changes nothing. Save the notebook with its outputs before you hand
it in."""
_LINK = re.compile(r"\[([^\]]+)\]\(\.\./(notebooks|exercises)/([\w.]+)(?:#[^)]*)?\)")


@dataclass(frozen=True)
class Task:
    """One exercise of an assignment.

    answer: what the check is called with, as source: "add_autocast", "(pack, unpack)"
    points: as many as its difficulty, from 1 to 5
    """

    exercise: Exercise
    answer: str

    @property
    def points(self) -> int:
        """Return the points of a correct answer; there are no others."""
        return self.exercise.difficulty


def has_exercises(chapter: Chapter) -> bool:
    """Return True if a chapter has anything to hand out."""
    return _master_path(chapter).is_file()


def named(name: str) -> Chapter:
    """Return the chapter called "06" or "loop". Raises CourseError if there is none,
    or if it has no exercises.
    """
    chapter = find(name)
    if not has_exercises(chapter):
        raise CourseError(f"chapter {chapter.stem} has no exercises to hand out: name another one.")
    return chapter


def tasks_of(chapter: Chapter) -> list[Task]:
    """Return a chapter's exercises, and the arguments of their checks, in the notebook's order."""
    by_name = {exercise.name: exercise for exercise in chapter.exercises()}
    cells = _answer_cells(_master(chapter))
    return [Task(by_name[name], _split(cell.source, name)[1]) for name, cell in cells]


def source_notebook(chapter: Chapter) -> NotebookNode:
    """Return the assignment for nbgrader's `source/`: with the answers, which nbgrader blanks."""
    master = _master(chapter)
    answers = {cell.id: name for name, cell in _answer_cells(master)}
    points = {task.exercise.name: task.points for task in tasks_of(chapter)}
    cells = []
    for number, cell in enumerate(master.cells):
        if "solution-only" in cell.metadata.get("tags", []):
            continue
        if cell.id in answers:
            name = answers[cell.id]
            code, answer = _split(cell.source, name)
            cells.append(_code(code, name, solution=True))
            cells.append(_code(_test(name, answer, points[name]), TEST + name, points=points[name]))
        elif cell.cell_type == "markdown":
            text = _LINK.sub(r"\1 (`\2/\3` in the course)", cell.source)
            cells.append(nbformat.v4.new_markdown_cell(text, id=f"text-{number}"))
        else:
            cells.append(nbformat.v4.new_code_cell(cell.source, id=f"code-{number}"))
    cells.insert(1, nbformat.v4.new_markdown_cell(_HAND_OUT, id="hand-out"))
    book = nbformat.v4.new_notebook(cells=cells, metadata=dict(master.metadata))
    book.metadata.pop("amp_course", None)
    book.metadata["amp_course"] = {
        "assignment": chapter.stem,
        "version": __version__,
        "digest": digest(book),
    }
    return book


def digest(book: NotebookNode) -> str:
    """Return a short fingerprint of what students receive: all cells' sources but the answers."""
    sources = [
        cell.source for cell in book.cells if not cell.metadata.get("nbgrader", {}).get("solution")
    ]
    return hashlib.sha256(json.dumps(sources).encode()).hexdigest()[:16]


def _master(chapter: Chapter) -> NotebookNode:
    return nbformat.read(_master_path(chapter), as_version=4)


def _master_path(chapter: Chapter) -> Path:
    return course_root() / "solutions" / f"{chapter.stem}.ipynb"


def _answer_cells(master: NotebookNode) -> list[tuple[str, NotebookNode]]:
    found = {
        tag.removeprefix("answer-"): cell
        for cell in master.cells
        for tag in cell.metadata.get("tags", [])
        if tag.startswith("answer-")
    }
    return list(found.items())


def _split(source: str, name: str) -> tuple[str, str]:
    """Split an answer's cell at its check: the code above, and the check's argument, as source."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == f"exercises.{name}.check":
            lines = source.split("\n")
            return "\n".join(lines[: node.lineno - 1]).rstrip(), ast.unparse(node.args[0])
    raise ValueError(f"the cell of {name} does not end with exercises.{name}.check(…)")


def _test(name: str, answer: str, points: int) -> str:
    return (
        f"# worth {counted(points, 'point')}\n"
        f'assert exercises.{name}.check({answer}).state == "correct", '
        '"no points yet: the message above says why"'
    )


def _code(
    source: str, name: str, *, solution: bool = False, points: int | None = None
) -> NotebookNode:
    kind = {
        "grade": points is not None,
        "grade_id": name,
        "locked": not solution,
        "solution": solution,
        "task": False,
    }
    worth = {"points": points} if points is not None else {}
    metadata = {"nbgrader": {**kind, **worth, "schema_version": 3}}
    return nbformat.v4.new_code_cell(source, id=name.replace("_", "-")[:64], metadata=metadata)
