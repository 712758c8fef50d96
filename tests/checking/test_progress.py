"""The progress file: missing, damaged or out of reach: nothing is lost."""

import errno
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from amp_course.checking import progress
from amp_course.checking.progress import load, progress_file, record, record_help


@pytest.fixture
def path(work: Path) -> Path:
    """Where the file will lie, in a folder that is there."""
    work.mkdir()
    return progress_file()


def write(path: Path, **entries: Any) -> None:
    path.write_text(json.dumps({"version": 1, "exercises": entries}), encoding="utf-8")


# --- what is recorded ---
def test_first_check_makes_folder_and_file(work: Path) -> None:
    assert load().data["exercises"] == {}
    assert not work.exists()
    assert record("loop.a", "not yet") is None
    assert json.loads((work / "progress.json").read_text())["exercises"] == {
        "loop.a": {"state": "not yet", "attempts": 1}
    }
    assert (load().state("loop.a"), load().state("loop.b")) == ("not yet", "not attempted")


def test_correct_never_goes_back(path: Path) -> None:
    record("loop.a", "not yet")
    record("loop.a", "correct")
    first = load().data["exercises"]["loop.a"]["first_correct"]
    record("loop.a", "not yet")
    entry = load().data["exercises"]["loop.a"]
    assert entry == {"state": "correct", "attempts": 3, "first_correct": first}
    write(path, **{"loop.a": entry | {"first_correct": "2001-01-01T00:00:00"}})
    record("loop.a", "correct")
    assert load().data["exercises"]["loop.a"]["first_correct"] == "2001-01-01T00:00:00"


def test_what_was_met_and_what_helped(path: Path) -> None:
    assert load().history("loop.a") == {
        "attempts": 0,
        "hints": 0,
        "solution": False,
        "mistakes": {},
    }
    record_help("loop.a", hints=2)
    record("loop.a", "not yet", "steps twice")
    record("loop.a", "not yet", "steps twice")
    record("loop.a", "not yet")
    record_help("loop.a", hints=1)  # asked again in another session
    record("loop.a", "correct")
    history = {"attempts": 4, "hints": 2, "solution": False, "mistakes": {"steps twice": 2}}
    assert load().history("loop.a") == history
    record_help("loop.a", solution=True)
    assert load().history("loop.a") == history | {"solution": True}
    assert load().state("loop.a") == "correct"


def test_a_blank_is_not_recorded(work: Path) -> None:
    assert record("loop.a", "not attempted") is None
    assert not work.exists()


@pytest.mark.parametrize(
    ("folder", "recorded"),
    [("solutions", False), ("solutions/deeper", False), ("my_work", True), ("solutions2", True)],
)
def test_answers_of_the_solutions_are_not_the_learners(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, recorded: bool
) -> None:
    (tmp_path / "notebooks").mkdir()
    (tmp_path / folder).mkdir(parents=True)
    monkeypatch.setenv("AMP_COURSE_ROOT", str(tmp_path))
    monkeypatch.chdir(tmp_path / folder)
    assert record("loop.a", "correct") is None
    assert progress_file().exists() == recorded


def test_what_else_stands_in_the_file_is_kept(path: Path) -> None:
    data = {
        "version": 9,
        "theme": {"dark": [1, None, "ü"]},
        "exercises": {
            "old.gone": {"state": "correct"},
            "loop.a": {"note": "mine", "state": "not yet", "attempts": 4},
        },
    }
    path.write_text(json.dumps(data), encoding="utf-8-sig")  # as some editors on Windows do
    assert record("loop.a", "correct") is None
    now = json.loads(path.read_text())
    entry = now["exercises"].pop("loop.a")
    del data["exercises"]["loop.a"]
    assert now == data
    assert (entry["note"], entry["state"], entry["attempts"]) == ("mine", "correct", 5)


# --- a damaged file ---
WHOLE = json.dumps({"version": 1, "exercises": {"loop.a": {"state": "correct"}}}, indent=1)
DAMAGED = {
    "empty": b"",
    "no JSON": b"hello",
    "not UTF-8": b"\xff\xfe\x00{",
    "a list": b"[]",
    "exercises are null": b'{"exercises": null}',
    "two in one": WHOLE.encode() * 2,
    "cut": WHOLE.encode()[:-13],
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_damaged_file_is_set_aside_whole(path: Path, kind: str) -> None:
    path.write_bytes(DAMAGED[kind])
    read = load()
    assert read.state("loop.a") == "not attempted"
    assert read.damaged
    assert f"{path} is damaged (" in read.note
    assert path.read_bytes() == DAMAGED[kind]  # reading changes nothing
    note = record("loop.a", "correct")
    (aside,) = path.parent.glob("progress.damaged-*.json")
    kept = f"the progress file was damaged; it is kept as {aside.name}, and a new one is started."
    assert note == kept
    assert aside.read_bytes() == DAMAGED[kind]
    assert (load().state("loop.a"), load().note) == ("correct", None)


# --- a file out of reach ---
def test_directory_in_its_place(path: Path) -> None:
    path.mkdir()
    (path / "mine.txt").write_text("keep")
    assert "is a folder, and a file belongs there" in str(load().note)
    assert "could not be saved" in str(record("loop.a", "correct"))
    assert (path / "mine.txt").read_text() == "keep"


def test_file_in_place_of_the_folder(work: Path) -> None:
    work.write_text("keep")
    assert load().state("loop.a") == "not attempted"
    assert "could not be saved" in str(record("loop.a", "correct"))
    assert work.read_text() == "keep"


CAUSES = {
    errno.EROFS: "is on a read-only disk. Use a folder on a disk that can be written",
    errno.EACCES: "you have no permission to use",
    errno.ENOSPC: "the disk is full. Delete something from it",
    errno.EDQUOT: "your disk quota is used up. Delete some of your files",
    errno.EIO: "the disk failed to read or write. Copy your files to another disk",
}


@pytest.mark.parametrize(
    ("call", "code"),
    [*(("replace", code) for code in CAUSES), ("fsync", errno.EIO), ("open", errno.EACCES)],
)
def test_disk_that_takes_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    write(path, **{"loop.a": {"state": "correct"}})
    before = path.read_bytes()

    def fails(*args: Any, **options: Any) -> Any:
        raise OSError(code, os.strerror(code), str(args[0]))

    with monkeypatch.context() as patch:
        if call == "open":
            patch.setattr(Path, "write_text", fails)
            patch.setattr(os, "open", fails)  # the lock's
        else:
            patch.setattr(os, call, fails)
        note = record("loop.b", "correct")
    assert note.startswith("your progress could not be saved: ")
    assert CAUSES[code] in note and "AMP_COURSE_WORK" in note and os.strerror(code) not in note
    assert path.read_bytes() == before
    assert record("loop.c", "not yet") is None  # what was not saved is saved with it
    assert [load().state(f"loop.{name}") for name in "abc"] == ["correct", "correct", "not yet"]


@pytest.fixture
def strict_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with some progress, met by a user for whom rights count:
    before root no folder is read-only.
    """
    root = os.geteuid() == 0
    with (
        tempfile.TemporaryDirectory() as name
    ):  # not in tmp_path, which is closed to all other users
        monkeypatch.setenv("AMP_COURSE_WORK", name)
        write(Path(name, "progress.json"), **{"loop.a": {"state": "correct"}})
        yield Path(name)
        if root:
            os.seteuid(0)
        Path(name).chmod(0o755)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="folders have other rights here")
@pytest.mark.parametrize("mode", [0o555, 0o000])
def test_folder_without_the_right_to_write(strict_folder: Path, mode: int) -> None:
    strict_folder.chmod(mode)
    if os.geteuid() == 0:
        os.seteuid(65534)
    assert "you have no permission to use" in str(record("loop.b", "correct"))
    assert load().state("loop.a") == ("correct" if mode == 0o555 else "not attempted")
    assert ("Your progress cannot be read: you have no permission" in str(load().note)) == (
        mode == 0
    )
    if os.getuid() == 0:
        os.seteuid(0)
    strict_folder.chmod(0o755)
    assert list(json.loads(progress_file().read_text())["exercises"]) == ["loop.a"]


def test_no_course_and_no_folder_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AMP_COURSE_WORK")
    monkeypatch.setenv("AMP_COURSE_ROOT", str(tmp_path / "gone"))
    assert "has no folder notebooks/" in str(load().note)
    assert "could not be saved: AMP_COURSE_ROOT" in str(record("loop.a", "correct"))


def test_a_link_to_nowhere(path: Path, tmp_path: Path) -> None:
    path.symlink_to(tmp_path / "unplugged" / "mine.json")
    assert load().state("loop.a") == "not attempted"
    note = str(record("loop.a", "correct"))
    assert "mine.json does not exist. Create the folder it belongs in" in note and path.is_symlink()
    (tmp_path / "unplugged").mkdir()
    assert record("loop.b", "correct") is None and load().state("loop.a") == "correct"


# --- locks ---
def test_lock_held_by_another_is_waited_for_and_then_reported(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_LOCK_SECONDS", 0.1)
    lock = path.with_name(".progress.json.lock")
    hold = "fcntl.flock(f, fcntl.LOCK_EX); print('held', flush=True); time.sleep(60)"
    script = f"import fcntl, time; f = open({str(lock)!r}, 'w'); {hold}"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True
    ) as holder:
        try:
            assert holder.stdout.readline() == "held\n"
            assert "another process has been using" in str(record("loop.a", "correct"))
            assert not path.exists()
        finally:
            holder.kill()
    assert lock.exists()  # left behind by the killed one, and no hindrance
    assert record("loop.b", "not yet") is None
    assert (load().state("loop.a"), load().state("loop.b")) == (
        "correct",
        "not yet",
    )  # the first was not lost
