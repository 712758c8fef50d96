"""The learner's copies: whatever happens to the files, nothing is lost."""

import json
import os
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

from amp_course import work
from amp_course.course import find
from amp_course.kit.errors import CourseError

NOON = datetime(2026, 11, 21, 15, 30)


class Desk:
    """The course's exercises on one side, the learner's folder on the other."""

    def __init__(self, root: Path) -> None:
        self.exercise = root / "exercises" / "06_loop.ipynb"
        self.folder = root / "my_work"
        self.copy = self.folder / "06_loop.ipynb"
        self.origins = self.folder / ".origins.json"
        (root / "notebooks").mkdir()
        self.exercise.parent.mkdir()
        self.exercise.write_text("first")

    def files(self) -> dict[str, str]:
        """The learner's folder, less what the course keeps there for itself."""
        ours = (self.origins.name, ".exercises.lock")
        return {
            path.name: path.read_text() for path in self.folder.iterdir() if path.name not in ours
        }


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    class Clock(datetime):
        @classmethod
        def now(cls, tz=None) -> datetime:
            return NOON

    monkeypatch.setattr(work, "datetime", Clock)
    monkeypatch.setenv("AMP_COURSE_ROOT", str(tmp_path))
    monkeypatch.setenv("AMP_COURSE_WORK", str(tmp_path / "my_work"))
    return Desk(tmp_path)


def messages() -> list[str]:
    return [change.message for change in work.copy_missing()]


def test_what_is_missing_is_copied_once(desk: Desk) -> None:
    (message,) = messages()
    assert message == f"Copied the exercises 06_loop to {desk.copy}."
    assert desk.files() == {"06_loop.ipynb": "first"}
    assert messages() == []


def test_a_learners_copy_is_never_overwritten(desk: Desk) -> None:
    work.copy_missing()
    desk.copy.write_text("mine")
    assert messages() == []
    assert desk.files() == {"06_loop.ipynb": "mine"}


def test_an_untouched_copy_follows_the_course(desk: Desk) -> None:
    work.copy_missing()
    desk.exercise.write_text("second")
    (message,) = messages()
    assert "have changed, and your untouched copy with them" in message
    assert desk.files() == {"06_loop.ipynb": "second"}
    assert messages() == []


def test_a_changed_exercise_is_offered_once_next_to_the_learners_copy(desk: Desk) -> None:
    work.copy_missing()
    desk.copy.write_text("mine")
    desk.exercise.write_text("second")
    (message,) = messages()
    assert "Your copy is unchanged" in message and "06_loop.new-2026-11-21.ipynb" in message
    assert messages() == []
    desk.exercise.write_text("third")  # again on the same day
    messages()
    assert desk.files() == {
        "06_loop.ipynb": "mine",
        "06_loop.new-2026-11-21.ipynb": "second",
        "06_loop.new-2026-11-21-2.ipynb": "third",
    }


def test_damaged_origins_cost_nothing(desk: Desk) -> None:
    work.copy_missing()
    desk.copy.write_text("mine")
    desk.exercise.write_text("second")
    desk.origins.write_text('{"06_loop')
    assert messages() == []
    assert desk.files() == {"06_loop.ipynb": "mine"}
    desk.exercise.write_text("third")
    assert len(messages()) == 1  # from here on, changes are noticed again


def test_a_copy_made_by_hand_is_the_learners(desk: Desk) -> None:
    desk.folder.mkdir()
    desk.copy.write_text("by hand")
    assert messages() == []
    assert desk.files() == {"06_loop.ipynb": "by hand"}


def test_reset_keeps_the_old_copy_under_a_dated_name(desk: Desk) -> None:
    work.copy_missing()
    desk.copy.write_text("mine")
    saved, fresh = work.reset(find("loop"))
    assert (
        saved.path.name == "06_loop.saved-2026-11-21-1530.ipynb"
        and str(saved.path) in saved.message
    )
    assert fresh.path == desk.copy
    desk.copy.write_text("mine again")
    work.reset(find("06"))
    assert desk.files() == {
        "06_loop.ipynb": "first",
        "06_loop.saved-2026-11-21-1530.ipynb": "mine",
        "06_loop.saved-2026-11-21-1530-2.ipynb": "mine again",
    }


def test_a_copy_that_was_reset_follows_the_course(desk: Desk) -> None:
    work.copy_missing()
    desk.exercise.write_text("second")
    work.reset(find("loop"))
    desk.exercise.write_text("third")
    (message,) = messages()
    assert "your untouched copy with them" in message and desk.copy.read_text() == "third"


def test_reset_of_a_chapter_without_exercises_names_those_with(desk: Desk) -> None:
    with pytest.raises(
        CourseError, match=r"chapter 00_start has no exercises to reset: choose .*06_loop"
    ):
        work.reset(find("start"))


def test_a_failed_reset_leaves_the_copy_where_it_was(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    work.copy_missing()
    desk.copy.write_text("mine")

    def full(source: Path, target: Path) -> None:
        raise OSError(28, "No space left on device", str(target))

    monkeypatch.setattr(work.shutil, "copyfile", full)
    with pytest.raises(CourseError, match="the disk is full"):
        work.reset(find("loop"))
    assert desk.copy.read_text() == "mine"


def test_a_kill_while_copying_leaves_no_half_notebook(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(source: Path, target: Path) -> None:
        Path(target).write_text("fir")
        raise KeyboardInterrupt

    monkeypatch.setattr(work.shutil, "copyfile", killed)
    with pytest.raises(KeyboardInterrupt):
        work.copy_missing()
    assert not desk.copy.exists()
    monkeypatch.undo()


def test_a_folder_that_cannot_be_written_says_which_and_what_to_do(desk: Desk) -> None:
    desk.folder.write_text("a file where the folder should be")
    with pytest.raises(CourseError, match=r"your copies in .*my_work could not .*AMP_COURSE_WORK"):
        work.copy_missing()


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only to root")
def test_a_read_only_folder_says_so(desk: Desk) -> None:
    desk.folder.mkdir(mode=0o500)
    with pytest.raises(CourseError, match="you have no permission to use"):
        work.copy_missing()


def test_a_course_without_exercises_makes_no_folder(desk: Desk) -> None:
    desk.exercise.unlink()
    assert messages() == []
    assert not desk.folder.exists()


def test_a_linked_copy_stays_a_link_and_what_it_led_to_is_kept(desk: Desk, tmp_path: Path) -> None:
    elsewhere = tmp_path / "synced" / "06_loop.ipynb"
    elsewhere.parent.mkdir()
    elsewhere.write_text("mine")
    desk.folder.mkdir()
    desk.copy.symlink_to(elsewhere)
    saved, _ = work.reset(find("loop"))
    assert desk.copy.is_symlink() and elsewhere.read_text() == "first"
    assert saved.path.read_text() == "mine" and not saved.path.is_symlink()


# All wait for the same file, so that they start at the same moment.
AT_ONCE = """
import sys, time
from pathlib import Path
from amp_course import work
gate = Path(sys.argv[1])
Path(f"{gate}.{sys.argv[2]}").touch()
while not gate.exists():
    time.sleep(0.0005)
work.copy_missing()
"""


def run_at_once(root: Path, processes: int) -> None:
    gate = root / "gate"
    commands = [
        [sys.executable, "-c", AT_ONCE, str(gate), str(number)] for number in range(processes)
    ]
    running = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for command in commands]
    while len(list(root.glob("gate.*"))) < processes:
        assert all(process.poll() is None for process in running)
    gate.touch()
    for process in running:
        assert process.communicate(timeout=60)[1] == "" and process.returncode == 0


def test_first_starts_at_once_all_succeed(desk: Desk, tmp_path: Path) -> None:
    for number in range(30):
        (desk.exercise.parent / f"{number}.ipynb").write_text("exercise")
    run_at_once(tmp_path, processes=3)
    assert len(desk.files()) == 31 and len(json.loads(desk.origins.read_text())) == 31


def test_a_folder_that_another_command_holds_is_said(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    from amp_course.kit import files

    desk.folder.mkdir()
    monkeypatch.setattr(work, "_LOCK_SECONDS", 0.05)
    with (
        files.locked(desk.folder / "exercises"),
        pytest.raises(CourseError, match=r"another process has been using .* Wait"),
    ):
        work.copy_missing()
