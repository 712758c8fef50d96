"""The class's folder in nbgrader's layout, which is never overwritten, and what was submitted."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import nbformat

from amp_course.classroom import assignment, gradebook
from amp_course.course import CHAPTERS, Chapter, available
from amp_course.kit.errors import CourseError
from amp_course.kit.files import write_text
from amp_course.kit.markup import counted
from amp_course.kit.paths import course_root

_MARK = "class.json"

CONFIG = """\
# For nbgrader's own commands and for formgrader: run `nbgrader generate_feedback 06_loop` or `jupyter lab` in this folder.
c = get_config()  # noqa: F821
c.CourseDirectory.course_id = "amp_course"
c.ClearSolutions.code_stub = {"python": "# your code here"}
c.ClearSolutions.enforce_metadata = True
"""

README = """\
# A class of amp_course

| what | where |
|---|---|
| hand this out | `release/06_loop/06_loop.ipynb`, and so for each chapter |
| put here what students hand in | `submitted/STUDENT/06_loop/06_loop.ipynb`; the folder's name is the student's id |
| names, if you want them on your page | `students.csv`, with the columns `id,name` |
| grade it | `amp-course classroom grade THIS_FOLDER` |
| the class's page | `amp-course classroom report THIS_FOLDER`, then open `report/index.html` |
| points and all else that nbgrader keeps | `gradebook.db`; run `jupyter lab` in this folder and open `/formgrader` to see it |
| feedback for the students | `nbgrader generate_feedback 06_loop`, then `feedback/STUDENT/06_loop/06_loop.html` |

Grade with `amp-course classroom grade`, not with `nbgrader autograde`. It repairs submissions that
would stop nbgrader, and runs each in a fresh kernel, which (where bubblewrap is installed) sees
neither this folder nor the network. Answers are judged in a process that no cell of the submission
has touched. `source/` holds the answers: do not hand it out.

The solutions of the exercises are part of the course, and your students can read them. The points
say who has worked through a chapter; they are not an exam.
"""


@dataclass(frozen=True)
class HandedIn:
    """One student's submission of one assignment; there may be anything at these paths."""

    student: str
    folder: Path
    notebook: Path


class ClassFolder:
    """A class's folder that exists. Raises CourseError where there is none."""

    def __init__(self, root: Path) -> None:
        self.root = Path(os.path.abspath(root))
        if not (self.root / _MARK).is_file():
            raise CourseError(
                f"{root} holds no class: make one with `amp-course classroom init {root}`, or name "
                f"another folder."
            )

    @property
    def gradebook(self) -> Path:
        return self.root / "gradebook.db"

    def chapters(self, names: Sequence[str] = ()) -> list[Chapter]:
        """Return the chapters that were handed out, or the named ones among them."""
        handed_out = [chapter for chapter in CHAPTERS if self.release(chapter).is_file()]
        wanted = [assignment.named(name) for name in names]
        missing = [chapter.stem for chapter in wanted if chapter not in handed_out]
        if missing:
            raise CourseError(
                f"{', '.join(missing)} is not in this class: `amp-course classroom init "
                f"{self.root} {' '.join(missing)}` adds it."
            )
        return [chapter for chapter in handed_out if not wanted or chapter in wanted]

    def source(self, chapter: Chapter) -> Path:
        """Return the assignment with its answers."""
        return self.root / "source" / chapter.stem / f"{chapter.stem}.ipynb"

    def release(self, chapter: Chapter) -> Path:
        """Return the notebook that students receive."""
        return self.root / "release" / chapter.stem / f"{chapter.stem}.ipynb"

    def autograded(self, chapter: Chapter, student: str) -> Path:
        """Return the graded notebook, with its outputs."""
        return self.root / "autograded" / student / chapter.stem / f"{chapter.stem}.ipynb"

    def result(self, chapter: Chapter, student: str) -> Path:
        return self.root / "results" / chapter.stem / f"{student}.json"

    def handed_in(self, chapter: Chapter) -> list[HandedIn]:
        """Return what is in `submitted/` for a chapter, by student id.

        A notebook under another name counts if it is the only one there, as "06_loop (1).ipynb",
        a browser's second download.
        """
        found = []
        for folder in sorted(self.root.glob(f"submitted/*/{chapter.stem}"), key=os.fsencode):
            if folder.parent.name.startswith("."):
                continue
            notebook = folder / f"{chapter.stem}.ipynb"
            others = list(folder.glob("*.ipynb"))
            if len(others) == 1 and not notebook.exists():
                notebook = others[0]
            found.append(HandedIn(folder.parent.name, folder, notebook))
        return found

    def misplaced(self) -> list[str]:
        """Return the notebooks in `submitted/` that are in no student's folder for a chapter."""
        submitted = self.root / "submitted"
        found = [*submitted.glob("*.ipynb"), *submitted.glob("*/*.ipynb")]
        return sorted(str(path.relative_to(submitted)) for path in found)

    def names(self) -> dict[str, str]:
        """Return id → name from `students.csv`; it need not have all students."""
        path = self.root / "students.csv"
        if not path.exists():
            return {}
        content = path.read_bytes()
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError:
            text = content.decode("cp1252", errors="replace")  # as Excel writes it on Windows
        rows = csv.DictReader(io.StringIO(text))
        if not {"id", "name"} <= set(rows.fieldnames or ()):
            raise CourseError(
                f"{path} needs a first line with the columns id and name, separated by a comma."
            )
        return {row["id"].strip(): row["name"].strip() for row in rows if row["id"] and row["name"]}


def create(root: Path, names: Sequence[str]) -> Iterator[str]:
    """Make a class's folder, or add chapters to one; yield a line on each thing done. Nothing is
    overwritten.

    Raises CourseError for a folder that holds something else, overlaps the course's or cannot be
    written.
    """
    root = Path(os.path.abspath(root))
    chapters = [assignment.named(name) for name in names] or [
        chapter for chapter in available() if assignment.has_exercises(chapter)
    ]
    _check(root)
    root.mkdir(parents=True, exist_ok=True)
    mark = json.dumps({"made by": "amp-course classroom init", "version": 1}) + "\n"
    # the mark first: by it an interrupted run recognizes the folder as a class's
    for name, text in ((_MARK, mark), ("nbgrader_config.py", CONFIG), ("README.md", README)):
        if not (root / name).exists():
            write_text(root / name, text)
    (root / "submitted").mkdir(exist_ok=True)
    place = ClassFolder(root)
    for chapter in chapters:
        yield _add(place, chapter)


def _check(root: Path) -> None:
    course = course_root().resolve()
    real = root.resolve()
    if real.is_relative_to(course) or course.is_relative_to(real):
        raise CourseError(
            f"{root} and the course's folder are one inside the other: choose a folder outside of "
            f"{course}."
        )
    if root.exists() and not root.is_dir():
        raise CourseError(f"{root} is a file: choose another name for the class's folder.")
    if root.is_dir() and not (root / _MARK).exists() and any(root.iterdir()):
        raise CourseError(
            f"{root} holds other things and no class: choose an empty folder, or a new name."
        )


def _add(place: ClassFolder, chapter: Chapter) -> str:
    source, release = place.source(chapter), place.release(chapter)
    fresh = assignment.source_notebook(chapter)
    if source.is_file():
        try:
            old = nbformat.read(source, as_version=4).metadata.get("amp_course", {})
        except Exception:  # nbformat raises many kinds of error for a file that was cut off
            raise CourseError(
                f"{source} is damaged: delete it, then type the command again."
            ) from None
        if gradebook.has(place.root, chapter.stem) and release.is_file():
            line = f"{chapter.stem}: kept as it is"
            if old.get("digest") == fresh.metadata["amp_course"]["digest"]:
                return line
            return (
                f"{line}; the course's is newer: delete {source.parent} and {release.parent} to "
                "have that one"
            )
    else:
        source.parent.mkdir(parents=True, exist_ok=True)
        write_text(source, nbformat.writes(fresh) + "\n")
    gradebook.generate(place.root, chapter.stem)
    tasks = assignment.tasks_of(chapter)
    exercises, points = len(tasks), sum(task.points for task in tasks)
    return f"{chapter.stem}: {counted(exercises, 'exercise')}, {counted(points, 'point')}, in {release}"
