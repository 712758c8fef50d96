"""The learner's progress: one small JSON file in `my_work/`, which a crash does not damage.

`{"version": 1, "exercises": {"loop.add_autocast": {"state": "correct", "attempts": 3,
"first_correct": "…", "hints": 1, "solution": false, "mistakes": {"steps inside the region": 2}}}}`
Other entries in the file are kept. A damaged file is set aside under a dated name, never lost.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from amp_course.checking.interrupts import raise_pending
from amp_course.checking.outcome import State
from amp_course.kit.errors import CourseError, cause_and_fix, describe_os_error
from amp_course.kit.files import locked, unused_name, write_text
from amp_course.kit.paths import course_root, work_dir

Change = Callable[[dict[str, Any]], None]  # made to an exercise's entry

_LOCK_SECONDS = 5.0
_NOTHING_YET: dict[str, Any] = {"attempts": 0, "hints": 0, "solution": False, "mistakes": {}}
_waiting: dict[Path, list[tuple[str, Change]]] = {}  # what could not be saved yet


@dataclass
class Progress:
    """What is known of each exercise; `note` says what is wrong with the file, if anything is."""

    data: dict[str, Any] = field(default_factory=lambda: {"version": 1, "exercises": {}})
    note: str | None = None
    damaged: bool = False

    def state(self, exercise_id: str) -> State:
        """Return "not attempted", "not yet" or "correct" for an id such as "loop.add_autocast"."""
        return self.data["exercises"].get(exercise_id, {}).get("state", "not attempted")

    def history(self, exercise_id: str) -> dict[str, Any]:
        """Return how an answer came about:
        {"attempts": 3, "hints": 1, "solution": False, "mistakes": {"…": 2}}.
        """
        entry = self.data["exercises"].get(exercise_id, {})
        return {name: entry.get(name, value) for name, value in _NOTHING_YET.items()}


def progress_file() -> Path:
    """Return the path of the progress file; it need not exist."""
    return work_dir() / "progress.json"


def load() -> Progress:
    """Read the progress; a missing file is empty progress, and so is an unreadable one, with a
    note. Never raises.
    """
    try:
        return _read(progress_file())
    except OSError as error:
        return Progress(note=describe_os_error(error, "Your progress cannot be read"))
    except RuntimeError as error:
        # CourseError, or AMP_COURSE_WORK names the home of a user who does not exist
        return Progress(note=str(error))


def _read(path: Path) -> Progress:
    try:
        # some editors on Windows put a mark in front
        return Progress(_parse(path.read_text(encoding="utf-8-sig")))
    except FileNotFoundError:
        return Progress()
    except ValueError as error:
        note = (
            f"{path} is damaged ({error}), so it counts as empty. It is kept: the next answer you "
            "check moves it aside under a dated name and starts a new one."
        )
        return Progress(note=note, damaged=True)


def record(exercise_id: str, state: State, mistake: str | None = None) -> str | None:
    """Record one checked answer, and the known mistake in it. Returns None, or why it could not be
    saved; never raises.

    An exercise once correct stays so. What cannot be saved is kept in memory and saved with the
    next answer. Answers checked in the folder `solutions/` are not the learner's, and not recorded.
    """

    def change(entry: dict[str, Any]) -> None:
        entry["state"] = "correct" if entry.get("state") == "correct" else state
        entry["attempts"] = entry.get("attempts", 0) + 1
        if state == "correct":
            entry.setdefault("first_correct", datetime.now().isoformat(timespec="seconds"))
        if mistake is not None:
            met = entry.setdefault("mistakes", {})
            met[mistake] = met.get(mistake, 0) + 1

    return None if state == "not attempted" else _record(exercise_id, change)


def record_help(exercise_id: str, hints: int = 0, solution: bool = False) -> None:
    """Record that so many hints, or the solution, were shown, as `record` does; never raises."""

    def change(entry: dict[str, Any]) -> None:
        entry["hints"] = max(entry.get("hints", 0), hints)
        entry["solution"] = entry.get("solution", False) or solution

    _record(exercise_id, change)


def _record(exercise_id: str, change: Change) -> str | None:
    if _in_solutions():
        return None
    try:
        path = progress_file()
        changes = _waiting.setdefault(path, [])
        changes.append((exercise_id, change))
        try:
            note = _save(path, changes)
        except KeyboardInterrupt:
            changes.pop()
            raise
        changes.clear()
        return note
    except OSError as error:  # TimeoutError is one too
        cause, fix = cause_and_fix(error)
        return (
            f"your progress could not be saved: {cause}. {fix[0].upper()}{fix[1:]} "
            "(AMP_COURSE_WORK names the folder for your work). The next answer that you check "
            "saves this result too."
        )
    except RuntimeError as error:
        return f"your progress could not be saved: {error}"


def _save(path: Path, changes: list[tuple[str, Change]]) -> str | None:
    """Make changes to the file. Returns a note if the file was damaged; raises OSError if it cannot
    be written.
    """
    note = None
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path, _LOCK_SECONDS):
        progress = _read(path)
        if progress.damaged:
            aside = unused_name(path, f"damaged-{datetime.now():%Y-%m-%d-%H%M%S}")
            os.replace(path, aside)
            note = f"the progress file was damaged; it is kept as {aside.name}, and a new one is "
            note += "started."
        for exercise_id, change in changes:
            change(progress.data["exercises"].setdefault(exercise_id, {}))
        raise_pending()  # after this, Ctrl-C is too late
        write_text(path, json.dumps(progress.data, indent=1) + "\n")
    return note


def _parse(text: str) -> dict[str, Any]:
    data = json.loads(text)
    if not isinstance(data, dict) or not isinstance(data.get("exercises"), dict):
        raise ValueError("it holds no table of exercises")
    return data


def _in_solutions() -> bool:
    try:
        return Path.cwd().is_relative_to(course_root() / "solutions")
    except (OSError, CourseError):
        return False
