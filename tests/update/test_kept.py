"""`amp-course update`, as a learner runs it: the new version comes, and nothing is lost."""

import subprocess

import pytest

from tests.update.conftest import Course, git, notebook, read_everything, write


def test_a_learner_who_ran_every_notebook_gets_version_2_and_loses_nothing(course: Course) -> None:
    write(course.clone, {"my_work/06_loop.ipynb": "solved", "my_work/progress.json": "{}"})
    assert course.update().returncode == 0  # nothing new yet: their copies are known from here on
    write(course.clone, {"my_work/06_loop.ipynb": "solved, and more"})
    mine = read_everything(course)
    course.publish_version_2()
    with pytest.raises(subprocess.CalledProcessError):
        git(course.clone, "pull", "--ff-only")  # what this command is for
    done = course.update()
    assert (done.returncode, done.stderr) == (0, "")
    assert course.is_version_2() and course.kept() == mine
    assert all(name in done.stdout for name in mine) and "before-update-" in done.stdout
    assert (course.work / "06_loop.ipynb").read_text() == "solved, and more"
    (offered,) = course.work.glob("06_loop.new-*.ipynb")
    assert offered.read_text() == notebook("2") and str(offered) in done.stdout
    again = course.update()
    assert "You have the newest version" in again.stdout and again.returncode == 0
    assert course.kept() == mine


def test_nothing_new_touches_nothing(course: Course) -> None:
    course.update()
    read_everything(course)
    before = course.snapshot()
    assert course.update().stdout.splitlines() == [
        "Looking for a new version ...",
        "You have the newest version of the course.",
    ]
    assert course.snapshot() == before


def test_a_second_update_on_the_same_day_keeps_both(course: Course) -> None:
    for count in (1, 2):
        write(course.clone, {"notebooks/06_loop.ipynb": f"mine {count}"})
        write(course.upstream, {"notebooks/06_loop.ipynb": f"version {count}"})
        course.commit("next")
        assert course.update().returncode == 0
    texts = [
        path.read_text()
        for path in sorted(course.work.glob("before-update-*/notebooks/06_loop.ipynb"))
    ]
    assert texts == ["mine 1", "mine 2"]


def test_every_kind_of_change_is_kept(course: Course) -> None:
    mine = {
        "lib/code.py": "mine",  # no notebook, and changed upstream
        "exercises/05_scaler.ipynb": "written in the wrong folder",
        "notebooks/09_speed.ipynb": "untracked, in the way of a new file",
        "lib/new": "a file where a folder is to come",
    }
    write(
        course.clone, mine | {"README.md": "my notes", "scratch.txt": "untracked, in nobody's way"}
    )
    (course.clone / "notebooks/05_scaler.ipynb").unlink()
    course.publish_version_2()
    assert course.update().returncode == 0
    assert course.kept() == mine
    assert git(course.clone, "status", "--porcelain").splitlines() == [
        " M README.md",
        "?? scratch.txt",
    ]
    assert (course.clone / "README.md").read_text() == "my notes"
    assert (course.clone / "notebooks/05_scaler.ipynb").read_text() == notebook("2")


def test_a_folder_and_an_added_file_in_the_way(course: Course) -> None:
    write(
        course.clone,
        {"notebooks/09_speed.ipynb/mine.txt": "in a folder", "lib/new/module.py": "added to git"},
    )
    git(course.clone, "add", "lib/new/module.py")
    course.publish_version_2()
    assert course.update().returncode == 0
    assert course.kept() == {
        "notebooks/09_speed.ipynb/mine.txt": "in a folder",
        "lib/new/module.py": "added to git",
    }
    assert course.is_version_2()


def test_a_file_that_already_is_the_new_version_is_not_the_learners(course: Course) -> None:
    course.publish_version_2()
    write(
        course.clone,
        {"notebooks/06_loop.ipynb": notebook("2"), "notebooks/09_speed.ipynb": notebook("2")},
    )
    assert course.update().returncode == 0
    assert course.kept() == {} and course.is_version_2()


def test_line_endings_of_windows_are_no_change(course: Course) -> None:
    git(course.clone, "config", "core.autocrlf", "true")
    for path in (course.clone / "notebooks").iterdir():
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    changed = course.clone / "notebooks/06_loop.ipynb"
    changed.write_bytes(notebook("1", count=3).replace("\n", "\r\n").encode())
    course.publish_version_2()
    assert course.update().returncode == 0
    (kept,) = course.work.glob("before-update-*/notebooks/*")
    assert kept.read_bytes() == notebook("1", count=3).replace("\n", "\r\n").encode()
    assert changed.read_bytes() == notebook("2").replace("\n", "\r\n").encode()
    assert course.is_version_2()
