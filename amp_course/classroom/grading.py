"""Grade a class: each submission in a kernel of its own, several at a time, each result saved at
once.

An interrupted run can be continued: what has not changed is not run again.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import nbformat

from amp_course import __version__
from amp_course.classroom import bubblewrap, gradebook, submission
from amp_course.classroom.assignment import TEST, Task, tasks_of
from amp_course.classroom.folder import ClassFolder, HandedIn
from amp_course.classroom.job import Job, Limits
from amp_course.classroom.names import printable, whole_letters
from amp_course.classroom.runner import Run, run
from amp_course.course import Chapter
from amp_course.kit.errors import CourseError
from amp_course.kit.files import locked, write_text

_FORMAT = 1  # of a result's file
Echo = Callable[[str], None]


@dataclass(frozen=True)
class Answer:
    """The result of one exercise of a submission."""

    exercise: str
    points: float
    of: int
    state: str
    mistake: str | None
    message: str


@dataclass(frozen=True)
class Result:
    """The result of one submission; a file in `results/` holds it as JSON.

    key:      a digest of what it depends on: the submission, the assignment, the course's version
    findings: what the instructor should know
    withheld: why there are no points in spite of right answers
    history:  exercise's id → attempts, hints, solution, mistakes, according to the submission
    """

    key: str
    student: str
    assignment: str
    graded: str
    seconds: float
    sandboxed: bool
    answers: tuple[Answer, ...]
    findings: tuple[str, ...] = ()
    withheld: tuple[str, ...] = ()
    history: dict[str, Any] = field(default_factory=dict)

    @property
    def points(self) -> float:
        return sum(answer.points for answer in self.answers)


def grade(
    place: ClassFolder,
    chapters: Sequence[Chapter],
    *,
    jobs: int | None = None,
    again: bool = False,
    echo: Echo = print,
    limits: Limits | None = None,
    sandboxed: bool | None = None,
) -> list[Result]:
    """Grade what was submitted for some chapters, and return the results, old and new.

    jobs:      how many submissions at a time; by default one for each core, without a sandbox one
    again:     grade unchanged submissions too
    sandboxed: by default, if bubblewrap runs here

    Raises CourseError if another run is at work in the same folder, and on Windows.
    """
    if not hasattr(os, "fork"):
        raise CourseError(
            "answers are judged in processes that Windows does not have: grade on Linux or macOS, "
            "or in WSL."
        )
    why_not = bubblewrap.missing()
    sandboxed = why_not is None if sandboxed is None else sandboxed
    echo(_protection(sandboxed, why_not))
    todo = [(chapter, found) for chapter in chapters for found in place.handed_in(chapter)]
    for stray in place.misplaced():
        echo(f"Not graded, for it is not in submitted/STUDENT/CHAPTER/: {printable(stray)}")
    if not todo:
        echo(
            f"Nothing was submitted: put notebooks into "
            f"{place.root / 'submitted'}/STUDENT/{chapters[0].stem}/."
        )
        return []
    try:
        with locked(place.gradebook, 1.0):
            grader = _Grader(place, len(todo), again, echo, limits or Limits(), sandboxed)
            at_once = (jobs or os.cpu_count() or 1) if sandboxed else 1
            return asyncio.run(grader.grade(todo, at_once))
    except TimeoutError:
        raise CourseError(
            f"another grading run is at work in {place.root}: wait until it has ended."
        ) from None


def load(place: ClassFolder, chapter: Chapter) -> list[Result]:
    """Return the saved results for a chapter, by student; damaged files are left out."""
    files = sorted((place.root / "results" / chapter.stem).glob("*.json"))
    return [found for file in files if (found := _read(file)) is not None]


def _protection(sandboxed: bool, why_not: str | None) -> str:
    if sandboxed:
        return "Each submission runs under bubblewrap: it sees neither this class nor the network."
    return (
        f"WITHOUT A SANDBOX: {why_not or 'as you asked'}. Each submission runs with your rights: "
        "it can read and change your files and use the network. Grade only what you trust, or "
        "grade in a container that holds nothing else."
    )


def _read(path: Path) -> Result | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        found["answers"] = tuple(Answer(**answer) for answer in found["answers"])
        if found.pop("format") != _FORMAT:
            return None
        return Result(**found | {name: tuple(found[name]) for name in ("findings", "withheld")})
    except (OSError, ValueError, TypeError, KeyError):
        return None


@dataclass
class _Grader:
    """One grading run: what its submissions share."""

    place: ClassFolder
    count: int
    again: bool
    echo: Echo
    limits: Limits
    sandboxed: bool
    done: int = 0

    async def grade(self, todo: Sequence[tuple[Chapter, HandedIn]], jobs: int) -> list[Result]:
        turns = asyncio.Semaphore(jobs)
        assignments = {
            chapter: (nbformat.read(self.place.release(chapter), 4), tasks_of(chapter))
            for chapter in {chapter for chapter, _ in todo}
        }

        async def graded(chapter: Chapter, handed_in: HandedIn) -> Result:
            release, tasks = assignments[chapter]
            async with turns:
                try:
                    return await self._grade(chapter, handed_in, release, tasks)
                except Exception as error:  # whatever one submission does, the others are graded
                    finding = f"it could not be graded ({type(error).__name__}: {error}); "
                    finding += "the next run tries again"  # for this result is not saved
                    ran = Run(nbformat.v4.new_notebook(), findings=[finding[:500]])
                    result = self._result(chapter, handed_in, tasks, ran)
                    self._announce(result, "failed")
                    return result

        async with asyncio.TaskGroup() as group:
            running = [group.create_task(graded(*each)) for each in todo]
        return [task.result() for task in running]

    async def _grade(
        self,
        chapter: Chapter,
        handed_in: HandedIn,
        release: nbformat.NotebookNode,
        tasks: list[Task],
    ) -> Result:
        key = _key(handed_in, release)
        old = _read(self.place.result(chapter, handed_in.student))
        same = old is not None and old.key == key and (self.sandboxed or not old.sandboxed)
        if old is not None and same and not self.again:
            self._announce(old, "unchanged")
            return old
        try:
            prepared = submission.prepare(submission.read(handed_in.notebook), release)
        except submission.Unreadable as reason:
            empty = nbformat.v4.new_notebook()
            prepared = submission.Submission(empty, (f"it cannot be read: {reason}",), False, {})
            ran = Run(empty)
        else:
            ran = await run(
                Job(
                    book=prepared.book,
                    chapter=chapter.word,
                    tasks=tasks,
                    handed_in=handed_in.folder,
                    class_root=self.place.root,
                    sandboxed=self.sandboxed,
                    limits=self.limits,
                )
            )
        ran.findings = [*prepared.findings, *ran.findings]
        withheld = _withheld(ran, prepared.suspect)
        result = self._result(
            chapter, handed_in, tasks, ran, key=key, withheld=withheld, history=prepared.history
        )
        self._save(chapter, result, ran)
        self._announce(result, f"{result.seconds:.1f} s")
        return result

    def _result(
        self,
        chapter: Chapter,
        handed_in: HandedIn,
        tasks: list[Task],
        ran: Run,
        *,
        key: str = "",
        withheld: tuple[str, ...] = (),
        history: dict[str, Any] | None = None,
    ) -> Result:
        return Result(
            key=key,
            student=handed_in.student,
            assignment=chapter.stem,
            graded=datetime.now().isoformat(timespec="seconds"),
            seconds=round(ran.seconds, 1),
            sandboxed=self.sandboxed,
            answers=tuple(_answer(task, ran, bool(withheld)) for task in tasks),
            findings=tuple(ran.findings),
            withheld=withheld,
            history=history or {},
        )

    def _save(self, chapter: Chapter, result: Result, ran: Run) -> None:
        """Save the notebook, then the points, then the result: without that, it is graded again."""
        if ran.book.cells:
            graded = self.place.autograded(chapter, result.student)
            graded.parent.mkdir(parents=True, exist_ok=True)
            write_text(graded, whole_letters(nbformat.writes(ran.book)) + "\n")
        scores = {TEST + answer.exercise.split(".")[1]: answer.points for answer in result.answers}
        gradebook.record(
            self.place.root, chapter.stem, result.student, scores, review=bool(result.withheld)
        )
        file = self.place.result(chapter, result.student)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, json.dumps({"format": _FORMAT, **asdict(result)}, indent=1) + "\n")

    def _announce(self, result: Result, how: str) -> None:
        self.done += 1
        of = sum(answer.of for answer in result.answers)
        who = f"[{self.done}/{self.count}] {printable(result.student)}, {result.assignment}"
        line = f"{who}: {result.points:g} of {of} points ({how})"
        withheld = [f"no points: {printable(why)}" for why in result.withheld]
        self.echo("\n    ".join([line, *withheld, *map(printable, result.findings)]))


def _withheld(ran: Run, suspect: bool) -> tuple[str, ...]:
    verdicts = ran.verdicts.values()
    replaced = list(dict.fromkeys(name for verdict in verdicts for name in verdict.replaced))
    opened = dict.fromkeys(name for verdict in verdicts for name in verdict.opened)
    reasons = [f"it replaced part of what judges it: {name}" for name in replaced[:3]]
    reasons += [f"it tried to open a file of the class: {name}" for name in opened]
    reasons += ["its code names gradebook.db"] if suspect and not opened else []
    return tuple(reasons)


def _answer(task: Task, ran: Run, withheld: bool) -> Answer:
    verdict = ran.verdicts.get(task.exercise.id)
    if verdict is None:
        return Answer(task.exercise.id, 0.0, task.points, "no verdict", None, "It was not reached.")
    right = verdict.state == "correct" and not withheld
    return Answer(
        task.exercise.id,
        float(task.points if right else 0),
        task.points,
        verdict.state,
        verdict.mistake,
        verdict.message[:4000],
    )


def _key(handed_in: HandedIn, release: nbformat.NotebookNode) -> str:
    assignment = release.metadata.get("amp_course", {}).get("digest")
    digest = hashlib.sha256(f"{__version__} {assignment}".encode())
    folder = handed_in.folder
    for file in sorted(folder.rglob("*")) if folder.is_dir() else [handed_in.notebook]:
        digest.update(os.fsencode(os.path.relpath(file, folder.parent)))
        with contextlib.suppress(OSError):
            if file.is_file() and not file.is_symlink() and file.stat().st_size <= submission.LIMIT:
                digest.update(file.read_bytes())
    return digest.hexdigest()
