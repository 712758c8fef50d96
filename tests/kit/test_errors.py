"""Failed file operations in words: each real failure has a cause and a fix of its own."""

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from amp_course.kit import errors
from amp_course.kit.errors import describe_os_error
from amp_course.kit.files import write_text

resource = pytest.importorskip("resource", reason="this system has no resource limits")
WHAT = "your progress could not be saved"


def described(operation) -> str:
    with pytest.raises(OSError) as caught:
        operation()
    return describe_os_error(caught.value, WHAT)


REAL = {
    "no folder": (
        lambda here: write_text(here / "no" / "file", "x"),
        "{0}/no/file does not exist. Create the folder",
    ),
    "file is a folder": (
        lambda here: (here / "folder").read_text(),
        "{0}/folder is a folder, and a file belongs there",
    ),
    "file in the folder's place": (
        lambda here: (here / "file").mkdir(),
        "{0}/file already exists and is something else",
    ),
    "long name": (
        lambda here: write_text(here / ("x" * 300), "x"),
        "is too long for this system. Use a folder with",
    ),
}


@pytest.mark.parametrize("kind", REAL)
def test_real_failures(tmp_path: Path, kind: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    operation, words = REAL[kind]
    text = described(lambda: operation(tmp_path))
    assert text.startswith(f"{WHAT}: ")
    assert words.format(tmp_path) in text
    assert text.endswith(", then try again.")
    assert ".part" not in text


def test_too_many_open_files(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    kept = []

    def opens() -> None:
        while True:
            kept.append(os.open(os.devnull, os.O_RDONLY))

    resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
    try:
        text = described(opens)
    finally:
        for file in kept:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert "too many files are open. Close some programs" in text


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KB that is full."""
    if os.geteuid() != 0 or not shutil.which("mount"):
        pytest.skip("only root can mount a disk")
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], capture_output=True
    ).returncode:
        pytest.skip("this system mounts no tmpfs")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_full_disk(tiny_disk: Path) -> None:
    write_text(tiny_disk / "progress.json", "old")
    text = described(lambda: write_text(tiny_disk / "progress.json", "x" * 100_000))
    assert text == f"{WHAT}: the disk is full. Delete something from it, then try again."
    assert (tiny_disk / "progress.json").read_text() == "old"
    assert os.listdir(tiny_disk) == ["progress.json"]


def test_read_only_disk(tiny_disk: Path) -> None:
    if subprocess.run(
        ["mount", "-o", "remount,ro", str(tiny_disk)], capture_output=True
    ).returncode:
        pytest.skip("this system cannot mount a disk read-only")
    text = described(lambda: write_text(tiny_disk / "progress.json", "x"))
    assert (
        f"{tiny_disk}/progress.json is on a read-only disk. Use a folder on a disk that can be "
        f"written" in text
    )


def test_every_code_has_words_of_its_own() -> None:
    for name in errors._CAUSES:
        if hasattr(errno, name):
            text = describe_os_error(OSError(getattr(errno, name), "raw", "/home/me/file"), WHAT)
            assert "raw" not in text and "{" not in text and text.startswith(f"{WHAT}: ")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            OSError(errno.EACCES, "x"),
            "you have no permission to use the file. Change its permissions or",
        ),
        (OSError(errno.EACCES, "x", b"/tmp/\xff"), "you have no permission to use /tmp/"),
        (OSError(99999, "odd thing", "/x"), "odd thing. Put that right, then try again."),
        (OSError("only a text"), "only a text. Put that right"),
        (OSError(), "OSError. Put that right"),
        (
            TimeoutError("another process uses it"),
            "another process uses it. Wait until it has finished, or close it, then",
        ),
    ],
)
def test_unusual_errors(error: OSError, text: str) -> None:
    assert f"{WHAT}: {text}" in describe_os_error(error, WHAT)


def test_windows_says_access_denied_for_a_file_in_use() -> None:
    error = PermissionError(errno.EACCES, "x", "C:\\file")
    error.winerror = 32  # an attribute that only Windows sets
    assert "another program is using C:\\file. Close that program" in describe_os_error(error, WHAT)
