"""The learner's copies of the exercises, in `my_work/`: made, refreshed, reset, but never lost.

`my_work/.origins.json` has what each copy was made from: `{"06_loop.ipynb": "<sha256 of the
exercise>"}`. A copy that still equals its origin is updated with the course; any other is the
learner's, and never written to.
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

_LOCK_SECONDS = 60.0  # another command may be copying megabytes to a network folder


@dataclass(frozen=True)
class Change:
    """One file that was written in `my_work/`, and a line on it for the learner."""

    path: Path
    message: str


def copy_missing(folder: str = "exercises", copies: Path | None = None) -> list[Change]:
    """Copy each exercise that the learner lacks; put one that has changed in the course next to the
    learner's copy.

    folder: of the course; on a server where many share one course, "notebooks" too
    copies: the learner's folder for them (default: `my_work/`)

    Returns what was done, in order. Raises CourseError if the learner's folder cannot be written.
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
    """Save the learner's copy of a chapter's exercises under a dated name, and make a fresh copy.

    Raises CourseError for a chapter without exercises, or if `my_work/` cannot be written.
    """
    exercise = course_root() / "exercises" / f"{chapter.stem}.ipynb"
    if not exercise.is_file():
        known = [path.stem for path in sorted(exercise.parent.glob("*.ipynb"))]
        raise CourseError(
            f"chapter {chapter.stem} has no exercises to reset: choose one that has some "
            f"({', '.join(known) or 'none yet'})."
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
    """Copy or offer one exercise if necessary; update `origins`."""
    upstream, origin = _sha256(exercise), origins.get(exercise.name)
    what = f"{exercise.parent.name} {exercise.stem}"  # folder and chapter
    if not copy.exists():
        _copy(exercise, copy)
        origins[exercise.name] = upstream
        return [Change(copy, f"Copied the {what} to {copy}.")]
    if origin == upstream:
        return []
    origins[exercise.name] = upstream
    mine = _sha256(copy)
    if origin is None or mine == upstream:
        # a copy of unknown origin is the learner's, and only later changes are offered
        return []
    if mine == origin:
        _copy(exercise, copy)
        return [Change(copy, f"The {what} have changed, and your untouched copy with them.")]
    offered = files.unused_name(copy, f"new-{datetime.now():%Y-%m-%d}")
    _copy(exercise, offered)
    message = f"The {what} have changed in the course. Your copy is unchanged; the new version is "
    return [Change(offered, f"{message}next to it: {offered}.")]


def _copy(source: Path, target: Path) -> None:
    """Copy in one step: a kill leaves no half notebook under the name that the learner opens."""
    with files.replacing(target) as part:
        shutil.copyfile(source, part)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _read_origins(work: Path) -> dict[str, str]:
    """Return the origins; none if their file is missing or damaged: then all copies are the
    learner's.
    """
    try:
        return dict(json.loads((work / ".origins.json").read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError, TypeError):
        return {}


def _write_origins(work: Path, origins: dict[str, str]) -> None:
    files.write_text(work / ".origins.json", json.dumps(origins, indent=1, sort_keys=True) + "\n")


@contextlib.contextmanager
def _alone_in(work: Path) -> Iterator[None]:
    """Make the folder, keep other commands out, and turn an OSError into one line with a fix."""
    try:
        work.mkdir(parents=True, exist_ok=True)
        with files.locked(work / "exercises", _LOCK_SECONDS):
            yield
    except OSError as error:
        what = f"your copies in {work} could not be written, and nothing of yours is lost"
        more = "AMP_COURSE_WORK can name another folder for them."
        raise CourseError(f"{describe_os_error(error, what)} {more}") from error
