"""The reader's progress: one small JSON file in `my_work/`, written so that a crash leaves the old one whole.

`{"version": 1, "exercises": {"loop.add_autocast": {"state": "correct", "attempts": 3, "first_correct": "…"}}}`
Whatever else stands in the file is kept. A file that cannot be read is set aside under a dated name, never lost.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from amp_course.checking.outcome import State
from amp_course.kit.errors import CourseError
from amp_course.kit.paths import course_root, work_dir

_LOCK_SECONDS = 5.0


@dataclass
class Progress:
    """What is known of each exercise; `note` says what was wrong with the file, if anything was."""

    data: dict[str, Any] = field(default_factory=lambda: {"version": 1, "exercises": {}})
    note: str | None = None
    damaged: bool = False

    def state(self, exercise_id: str) -> State:
        """Return "not attempted", "not yet" or "correct" for an id such as "loop.add_autocast"."""
        state = self.data["exercises"].get(exercise_id, {}).get("state")
        return state if state in ("not yet", "correct") else "not attempted"

    def attempts(self, exercise_id: str) -> int:
        """Return how often the exercise was checked with an answer in it."""
        count = self.data["exercises"].get(exercise_id, {}).get("attempts")
        return count if isinstance(count, int) else 0


def progress_file() -> Path:
    """Return the path of the progress file; it need not exist."""
    return work_dir() / "progress.json"


def load() -> Progress:
    """Read the progress. A missing file is empty progress; an unreadable one too, with a note; never raises."""
    path = Path("progress.json")
    try:
        path = progress_file()
        return Progress(_parse(path.read_text(encoding="utf-8-sig")))  # some editors on Windows put a mark in front
    except FileNotFoundError:
        return Progress()
    except OSError as error:
        return Progress(note=f"{path} cannot be read ({error.strerror}): check its permissions; it is left as it is.")
    except (ValueError, RecursionError) as error:
        return Progress(
            note=f"{path} is damaged ({error}), so it counts as empty. It is kept: the next answer you check moves it aside "
            "under a dated name and starts a new one.",
            damaged=True,
        )
    except RuntimeError as error:  # CourseError; or AMP_COURSE_WORK names the home of a user who is not there
        return Progress(note=str(error))


def record(exercise_id: str, state: State) -> str | None:
    """Note one checked answer. Returns None, or a sentence on why it could not be saved; never raises.

    An exercise once correct stays so. Answers checked from the folder `solutions/` are not the reader's and
    are not noted.
    """
    if state == "not attempted" or _in_solutions():
        return None
    try:
        path = progress_file()
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path):
            progress = load()
            if progress.note and not progress.damaged:
                return f"your progress could not be saved: {progress.note}"
            aside = _set_aside(path) if progress.damaged else None
            entry = progress.data["exercises"].setdefault(exercise_id, {})
            entry["state"] = state if progress.state(exercise_id) != "correct" else "correct"
            entry["attempts"] = progress.attempts(exercise_id) + 1
            if state == "correct":
                entry.setdefault("first_correct", datetime.now().isoformat(timespec="seconds"))
            write_whole(path, json.dumps(progress.data, indent=1) + "\n")
    except OSError as error:  # TimeoutError is one too
        return (
            f"your progress could not be saved ({error}). Your answer is judged all the same; make the folder "
            "writable (or set AMP_COURSE_WORK to another one) and check again."
        )
    except RuntimeError as error:
        return f"your progress could not be saved: {error}"
    return f"the progress file was damaged; it is kept as {aside.name} and a new one is begun." if aside else None


def write_whole(path: Path, text: str) -> None:
    """Replace the file's content in one step: a kill at any moment leaves the old text or the new, never half.

    The caller holds the lock, or is the only writer.
    """
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def _parse(text: str) -> dict[str, Any]:
    data = json.loads(text)
    if not isinstance(data, dict) or not isinstance(data.get("exercises"), dict):
        raise ValueError("it holds no table of exercises")
    if not all(isinstance(entry, dict) for entry in data["exercises"].values()):
        raise ValueError("an exercise's entry is not a table")
    return data


def _set_aside(path: Path) -> Path:
    stamp = datetime.now().strftime("%Y-%m-%d-%H%M%S")
    aside, count = path.with_name(f"progress.damaged-{stamp}.json"), 1
    while aside.exists():
        count += 1
        aside = path.with_name(f"progress.damaged-{stamp}-{count}.json")
    os.replace(path, aside)
    return aside


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    # Two notebooks may check at the same moment: without a lock the later write would undo the earlier.
    from filelock import FileLock, Timeout

    lock = FileLock(path.with_name("." + path.name + ".lock"))
    try:
        lock.acquire(timeout=_LOCK_SECONDS)
    except Timeout:
        raise TimeoutError("another notebook has been writing it for 5 seconds") from None
    except (OSError, NotImplementedError):
        pass  # a file system without locks, or one that cannot be written, which writing will tell
    try:
        yield
    finally:
        lock.release()


def _in_solutions() -> bool:
    try:
        return Path.cwd().is_relative_to(course_root() / "solutions")
    except (OSError, CourseError):
        return False
