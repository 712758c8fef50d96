"""Writing files: whole or not at all, through links, under a lock."""

import os
import subprocess
import sys

import pytest

from amp_course.kit.files import locked, replacing, unused_name, write_text


def test_a_file_is_replaced_whole(tmp_path):
    path = tmp_path / "progress.json"
    write_text(path, "old — é")
    write_text(path, "new")
    assert path.read_text(encoding="utf-8") == "new"
    assert os.listdir(tmp_path) == ["progress.json"]


def test_an_exception_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "progress.json"
    path.write_text("old")
    with pytest.raises(RuntimeError, match="half way"), replacing(path) as part:
        part.write_text("ne")
        raise RuntimeError("half way")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["progress.json"]


def test_a_link_stays_a_link_and_permissions_stay(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    real, link = tmp_path / "elsewhere" / "real.json", tmp_path / "progress.json"
    real.write_text("old")
    real.chmod(0o640)
    link.symlink_to(real)
    write_text(link, "new")
    assert link.is_symlink() and real.read_text() == "new" and real.stat().st_mode & 0o777 == 0o640


def test_a_name_that_is_taken_is_not_given(tmp_path):
    path = tmp_path / "06_loop.ipynb"
    names = []
    for _ in range(3):
        names.append(unused_name(path, "saved-x"))
        names[-1].touch()
    assert [name.name for name in names] == [
        "06_loop.saved-x.ipynb",
        "06_loop.saved-x-2.ipynb",
        "06_loop.saved-x-3.ipynb",
    ]


def test_a_lock_keeps_another_process_out(tmp_path):
    path = tmp_path / "progress.json"
    ask = (
        "import sys, pathlib; from amp_course.kit.files import locked\nwith "
        "locked(pathlib.Path(sys.argv[1]), 0.2): print('in')"
    )
    with locked(path):
        other = subprocess.run(
            [sys.executable, "-c", ask, str(path)], capture_output=True, text=True
        )
    assert other.returncode == 1 and "another process has been using" in other.stderr
    assert (
        subprocess.run(
            [sys.executable, "-c", ask, str(path)], capture_output=True, text=True
        ).stdout
        == "in\n"
    )
