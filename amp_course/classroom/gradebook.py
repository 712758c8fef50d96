"""Let nbgrader generate assignments and keep points. No other module imports it."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from amp_course.classroom.names import printable
from amp_course.kit.errors import CourseError

COURSE = "amp_course"


def generate(root: Path, name: str) -> None:
    """Let nbgrader make `release/NAME` of `source/NAME`, and record its cells and points.
    Raises CourseError if it refuses.
    """
    with _open(root):
        pass  # raises for a damaged gradebook
    with _quietly():
        from nbgrader.apps import NbGraderAPI
        from traitlets.config import Config

        config = Config()
        config.CourseDirectory.root = str(root)
        config.CourseDirectory.course_id = COURSE
        config.ClearSolutions.code_stub = {"python": "# your code here"}
        done = NbGraderAPI(config=config).generate_assignment(name, force=True, create=True)
    if not done["success"]:
        log = (done.get("log") or "").splitlines()
        errors = [line for line in log if "Error" in line and "NbGraderException" not in line]
        reason = errors[-1].strip() if errors else "it gives no reason"
        raise CourseError(f"nbgrader could not make the assignment {name}: {reason}")


def has(root: Path, name: str) -> bool:
    """Return True if the gradebook knows an assignment with at least one cell to grade."""
    if not (root / "gradebook.db").is_file():
        return False
    with _open(root) as (book, missing):
        try:
            return book.find_assignment(name).max_score > 0
        except missing:
            return False


def record(root: Path, name: str, student: str, scores: Mapping[str, float], review: bool) -> None:
    """Write a student's points, cell by cell; `review` marks them for a person to review.
    Repeating it changes nothing.

    scores: cell → points; points that a person gave by hand stay
    """
    with _open(root) as (book, _):
        student = printable(student)
        book.update_or_create_student(student)
        book.update_or_create_submission(name, student)
        submitted = book.find_submission_notebook(name, name, student)
        for grade in submitted.grades:
            grade.auto_score = scores.get(grade.cell.name, 0.0)
            grade.needs_manual_grade = review or grade.manual_score is not None
        book.db.commit()


def given_by_hand(root: Path, name: str) -> dict[str, float]:
    """Return student → points, for students whom a person gave at least one mark in nbgrader."""
    with _open(root) as (book, _):
        return {
            submission.student.id: float(submission.score)
            for submission in book.find_assignment(name).submissions
            if any(
                grade.manual_score is not None
                for notebook in submission.notebooks
                for grade in notebook.grades
            )
        }


@contextlib.contextmanager
def _open(root: Path) -> Iterator[tuple[Any, type[Exception]]]:
    with _quietly():
        from nbgrader.api import Gradebook, MissingEntry
        from sqlalchemy.exc import DatabaseError

        path = root / "gradebook.db"
        try:
            with Gradebook(f"sqlite:///{path}", COURSE) as book:
                yield book, MissingEntry
        except DatabaseError as error:
            if "malformed" not in str(error) and "not a database" not in str(error):
                raise
            raise CourseError(
                f"{path} is damaged: move it away, then type `amp-course classroom init {root}` "
                f"and grade again with --again."
            ) from None


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Hide the warnings and logs of nbgrader and its libraries: they are for developers."""
    try:
        import nbgrader  # noqa: F401
    except ModuleNotFoundError:
        raise CourseError(
            "a class needs nbgrader, which is not installed: type `.venv/bin/python -m pip install "
            "-c constraints.txt nbgrader` in the course's folder."
        ) from None
    path = os.environ.get("PATH", "")
    # it starts `alembic` by that name
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), path])
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        os.environ["PATH"] = path
