"""The reader's own copies of the exercises, in `my_work/`: made, refreshed, reset. Nothing of the
reader's is lost.

`my_work/.origins.json` remembers what each copy was made from: `{"06_loop.ipynb": "<sha256 of the
exercise>"}`. A copy that still equals its origin is not yet the reader's, and follows the course;
any other is never written to.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from amp_course.course import Chapter
from amp_course.kit import files
from amp_course.kit.errors import CourseError, describe_os_error
from amp_course.kit.paths import course_root, work_dir

# another command copies some megabytes; on a network folder that takes its time
_LOCK_SECONDS = 60.0


@dataclass(frozen=True)
class Change:
    """One file that was written in `my_work/`, and a line that says so to the reader."""

    path: Path
    message: str


def copy_missing(folder: str = "exercises", copies: Path | None = None) -> list[Change]:
    """Copy each exercise that the reader lacks; put one that has changed in the course next to the
    reader's copy.

    folder: of the course; on a server on which many share one course, "notebooks" too
    copies: the reader's folder for them (default: `my_work/`)

    Returns what was done, in order; nothing to do gives an empty list. Raises CourseError where
    the reader's folder cannot be written.
    """
    exercises = sorted((course_root() / folder).glob("*.ipynb"))
    work = copies or work_dir()
    changes: list[Change] = []
    if not exercises:
        return changes
    with _alone_in(work):
        before = _read_origins(work)
        origins = dict(before)
        for exercise in exercises:
            changes += _bring_up_to_date(exercise, work / exercise.name, origins)
        if origins != before:
            _write_origins(work, origins)
    return changes


def reset(chapter: Chapter) -> list[Change]:
    """Put the reader's copy of a chapter's exercises aside under a dated name, and make a fresh
    copy.

    Raises CourseError for a chapter without exercises, or where `my_work/` cannot be written.
    """
    exercise = course_root() / "exercises" / f"{chapter.stem}.ipynb"
    if not exercise.is_file():
        known = (
            ", ".join(path.stem for path in sorted(exercise.parent.glob("*.ipynb"))) or "none yet"
        )
        raise CourseError(
            f"chapter {chapter.stem} has no exercises to reset: choose one that has some ({known})."
        )
    work = work_dir()
    copy = work / exercise.name
    changes: list[Change] = []
    with _alone_in(work):
        if copy.exists():
            saved = files.unused_name(copy, f"saved-{datetime.now():%Y-%m-%d-%H%M}")
            _copy(copy, saved)
            changes.append(Change(saved, f"Your work is kept as {saved}."))
        _copy(exercise, copy)
        changes.append(Change(copy, f"{copy} is fresh again."))
        _write_origins(work, _read_origins(work) | {exercise.name: _sha256(exercise)})
    return changes


def _bring_up_to_date(exercise: Path, copy: Path, origins: dict[str, str]) -> list[Change]:
    """Deal with one exercise; notes in `origins` what the copy now stems from."""
    upstream, origin = _sha256(exercise), origins.get(exercise.name)
    kind = exercise.parent.name  # exercises
    if not copy.exists():
        _copy(exercise, copy)
        origins[exercise.name] = upstream
        return [Change(copy, f"Copied the {kind} {exercise.stem} to {copy}.")]
    if origin == upstream:
        return []
    origins[exercise.name] = upstream
    mine = _sha256(copy)
    if origin is None or mine == upstream:
        # where the copy stems from is not known: it is the reader's, and only later changes are
        # offered
        return []
    if mine == origin:
        _copy(exercise, copy)
        return [
            Change(
                copy,
                f"The {kind} {exercise.stem} have changed, and your untouched copy with them.",
            )
        ]
    offered = files.unused_name(copy, f"new-{datetime.now():%Y-%m-%d}")
    _copy(exercise, offered)
    return [
        Change(
            offered,
            f"The {kind} {exercise.stem} have changed in the course. Your copy is unchanged; "
            f"the new version is next to it: {offered}.",
        )
    ]


def _copy(source: Path, target: Path) -> None:
    """Copy in one step: a kill leaves no half notebook under the name that the reader opens."""
    with files.replacing(target) as part:
        shutil.copyfile(source, part)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _read_origins(work: Path) -> dict[str, str]:
    """Return the origins; none if their file is missing or damaged: then each copy counts as the
    reader's.
    """
    try:
        return dict(json.loads((work / ".origins.json").read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError, TypeError):
        return {}


def _write_origins(work: Path, origins: dict[str, str]) -> None:
    files.write_text(work / ".origins.json", json.dumps(origins, indent=1, sort_keys=True) + "\n")


@contextlib.contextmanager
def _alone_in(work: Path) -> Iterator[None]:
    """Make the folder and keep other commands out of it;
    turn the system's refusal to write into one line with a fix.
    """
    try:
        work.mkdir(parents=True, exist_ok=True)
        with files.locked(work / "exercises", _LOCK_SECONDS):
            yield
    except OSError as error:
        raise CourseError(
            describe_os_error(
                error, f"your copies in {work} could not be written, and nothing of yours is lost"
            )
            + " AMP_COURSE_WORK can name another folder for them."
        ) from error
