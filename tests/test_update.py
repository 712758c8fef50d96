"""`amp-course update`, as a learner runs it, in a clone of a real repository."""

import contextlib
import io
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import pytest

from amp_course import cli

_SETTINGS = ("user.name=a", "user.email=a@b", "init.defaultBranch=main", "commit.gpgsign=false")
GIT = [part for setting in _SETTINGS for part in ("-c", setting)]
CHAPTERS = ("05_scaler", "06_loop", "07_patterns")


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", *GIT, *arguments], cwd=folder, check=True, capture_output=True, text=True
    ).stdout


def notebook(text: str, count: int | None = None, output: str = "") -> str:
    """A notebook as JupyterLab writes it; with a count, as after the cell was run."""
    outputs = [{"name": "stdout", "output_type": "stream", "text": [output]}] if output else []
    cell = {
        "cell_type": "code",
        "execution_count": count,
        "metadata": {},
        "outputs": outputs,
        "source": [text],
    }
    return (
        json.dumps(
            {"cells": [cell], "metadata": {"run": count}, "nbformat": 4, "nbformat_minor": 5},
            indent=1,
        )
        + "\n"
    )


class Course:
    """The course's repository at version 1, and a learner's clone of it, in a path with a space."""

    def __init__(self, root: Path) -> None:
        self.upstream, self.clone = root / "upstream", root / "the clone"
        self.work = self.clone / "my_work"
        files = {
            f"{folder}/{name}.ipynb": notebook("1")
            for folder in ("notebooks", "exercises")
            for name in CHAPTERS
        }
        files |= {
            ".gitignore": "my_work/\n.venv/\n",
            "README.md": "one\n",
            "lib/code.py": "one = 1\n",
            "pyproject.toml": "1\n",
        }
        write(self.upstream, files)
        git(root, "init", "--quiet", str(self.upstream))
        self.commit("version 1")
        git(root, "clone", "--quiet", str(self.upstream), str(self.clone))

    def commit(self, message: str) -> None:
        git(self.upstream, "add", "--all")
        git(self.upstream, "commit", "--quiet", "-m", message)

    def publish_version_2(self) -> None:
        """Change every notebook and an exercise, add a chapter and a module, remove a file,
        leave README alone.
        """
        files = {f"notebooks/{name}.ipynb": notebook("2") for name in CHAPTERS}
        files |= {
            "exercises/06_loop.ipynb": notebook("2"),
            "notebooks/09_speed.ipynb": notebook("2"),
        }
        files |= {"lib/code.py": "two = 2\n", "lib/new/module.py": "new = 2\n"}
        write(self.upstream, files)
        self.commit("version 2")

    def update(self, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run the command in this process: a new one would take longer than git does."""
        out, err = io.StringIO(), io.StringIO()
        with (
            mock.patch.dict(os.environ, self.environment(**environment)),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            code = cli.main(["update"])
        return subprocess.CompletedProcess([], code, out.getvalue(), err.getvalue())

    command = (sys.executable, "-m", "amp_course", "update")

    def environment(self, **more: str) -> dict[str, str]:
        own = {
            "AMP_COURSE_ROOT": str(self.clone),
            "PYTHONPATH": str(Path(__file__).parents[1]),
            "LC_ALL": "C.UTF-8",
        }
        return {**os.environ, **own, "AMP_COURSE_WORK": str(self.work), **more}

    def kept(self) -> dict[str, str]:
        """What updates put aside: name → text, all folders of that kind taken together."""
        folders = self.work.glob("before-update-*")
        return {
            str(path.relative_to(folder)): path.read_text()
            for folder in folders
            for path in files_in(folder)
        }

    def is_version_2(self) -> bool:
        same = git(self.clone, "rev-parse", "HEAD") == git(self.upstream, "rev-parse", "HEAD")
        return same and git(self.clone, "status", "--porcelain") == ""

    def snapshot(self) -> dict[str, str]:
        found = {
            path: path.read_text() for path in files_in(self.clone) if ".git/" not in str(path)
        }
        return {
            str(path): text for path, text in found.items() if not path.name.startswith(".update")
        }


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 2, done.stdout + done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("amp-course: ")
    return line


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Course:
    for name in (
        "GIT_DIR",
        "GIT_WORK_TREE",
        "GIT_INDEX_FILE",
    ):  # set where the tests are started by a hook of git's
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    return Course(tmp_path)


def read_everything(course: Course) -> dict[str, str]:
    """Run every notebook as a learner does, with JupyterLab's autosave;
    returns what the learner then has.
    """
    mine = {f"notebooks/{name}.ipynb": notebook("1", count=7, output="8.1 ms") for name in CHAPTERS}
    write(course.clone, mine)
    return mine


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
    assert (
        "You have the newest version" in again.stdout
        and again.returncode == 0
        and course.kept() == mine
    )


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
    assert (
        changed.read_bytes() == notebook("2").replace("\n", "\r\n").encode()
        and course.is_version_2()
    )


def refuse_no_git(course: Course) -> dict[str, str]:
    return {"PATH": str(course.clone)}


def refuse_zip(course: Course) -> None:
    shutil.rmtree(course.clone / ".git")


def refuse_unreachable(course: Course) -> None:
    shutil.move(course.upstream, course.upstream.with_name("gone"))


def refuse_detached(course: Course) -> None:
    git(course.clone, "checkout", "--quiet", "--detach")


def refuse_no_upstream(course: Course) -> None:
    git(course.clone, "switch", "--quiet", "-c", "mine")


def refuse_diverged(course: Course) -> None:
    git(course.clone, "add", "README.md")
    git(course.clone, "commit", "--quiet", "--allow-empty", "-m", "mine")


def refuse_git_at_work(course: Course) -> None:
    (course.clone / ".git/index.lock").touch()


def refuse_folder(course: Course) -> None:
    course.work.write_text("a file where the folder should be")


REFUSALS = {
    refuse_no_git: "git, which is not installed",
    refuse_zip: "not a clone made with git, .* copy the folder my_work",
    refuse_unreachable: "could not be fetched, and nothing was changed",
    refuse_detached: "`git switch main`",
    refuse_no_upstream: "the branch mine .* follows no branch of the course: `git branch "
    "--set-upstream-to=origin/main`",
    refuse_diverged: "commits that the course does not have.*`git pull --rebase --autostash`",
    refuse_git_at_work: "index.lock",
    refuse_folder: "was not updated, and nothing of yours is lost",
}


@pytest.mark.parametrize("hinder", REFUSALS, ids=lambda hinder: hinder.__name__)
def test_what_cannot_be_updated_is_one_line_and_nothing_is_lost(course: Course, hinder) -> None:
    read_everything(course)
    course.publish_version_2()
    environment = hinder(course) or {}
    before = sorted(course.snapshot().values())

    assert re.search(REFUSALS[hinder], one_line(course.update(**environment)))
    assert (
        sorted(course.snapshot().values())[: len(before)] == before or hinder is refuse_git_at_work
    )
    assert notebook("1", count=7, output="8.1 ms") in kept_and_present(course)


def kept_and_present(course: Course) -> list[str]:
    return [path.read_text() for path in files_in(course.clone) if ".git/" not in str(path)]


@pytest.mark.slow
def test_a_kill_at_any_moment_is_finished_by_the_next_run(course: Course) -> None:
    """By default 8 kills, spread over a run; UPDATE_KILLS=200 for the long proof."""
    draw = random.Random(1)
    for kill in range(int(os.environ.get("UPDATE_KILLS", "8"))):
        shutil.rmtree(course.clone)
        git(course.upstream, "reset", "--quiet", "--hard", "HEAD~1" if kill else "HEAD")
        git(course.clone.parent, "clone", "--quiet", str(course.upstream), str(course.clone))
        mine = read_everything(course) | {"lib/code.py": "mine"}
        write(course.clone, mine)
        course.publish_version_2()
        marker = course.work / ".update-unfinished"
        process = subprocess.Popen(
            course.command,
            env=course.environment(),
            start_new_session=True,
            stdout=subprocess.DEVNULL,
        )
        while not marker.exists() and process.poll() is None:
            time.sleep(0.001)
        time.sleep(draw.uniform(0, 0.15))
        os.killpg(process.pid, signal.SIGKILL)  # git as well
        process.wait()
        for lock in (course.clone / ".git").rglob("*.lock"):
            lock.unlink()  # as git's message advises
        done = course.update()
        assert done.returncode == 0, done.stderr
        assert course.is_version_2() and not marker.exists(), f"kill {kill}"
        assert set(mine.values()) <= set(kept_and_present(course)), f"kill {kill}"


def test_two_at_once(course: Course) -> None:
    mine = read_everything(course)
    course.publish_version_2()
    running = [
        subprocess.Popen(
            course.command, env=course.environment(), stderr=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    errors = sorted(process.communicate(timeout=100)[1] for process in running)
    assert {process.returncode for process in running} <= {0, 2} and errors[0] == ""
    assert errors[1] in (
        "",
        "amp-course: another `amp-course update` is running in this course: wait until it has "
        "ended.\n",
    )
    assert course.kept() == mine and course.is_version_2()


def test_it_stops_while_jupyterlab_is_open_there(course: Course, tmp_path: Path) -> None:
    mine = read_everything(course)
    course.publish_version_2()
    runtime = tmp_path / "runtime"
    with socket.create_server(("127.0.0.1", 0)) as server:
        entry = {"pid": os.getpid(), "port": server.getsockname()[1], "root_dir": str(course.clone)}
        write(runtime, {"jpserver-1.json": json.dumps(entry)})
        done = course.update(JUPYTER_RUNTIME_DIR=str(runtime))
        assert (
            "JupyterLab is running in" in one_line(done)
            and "save your notebooks, stop it with Ctrl-C" in done.stderr
        )
        assert course.kept() == {} and set(mine.values()) <= set(kept_and_present(course))
    assert (
        course.update(JUPYTER_RUNTIME_DIR=str(runtime)).returncode == 0
    )  # its record is there, but nothing listens


@pytest.mark.parametrize("made_by", ["make", "pip"])
def test_changed_requirements_are_installed(course: Course, made_by: str) -> None:
    noted = (
        course.clone / ".venv" / "noted"
    )  # tools/install.py or pip writes down how it was called
    note = (
        f"import sys, pathlib; pathlib.Path({str(noted)!r}).write_text(' '.join(sys.argv[1:]) + "
        f"'.')"
    )
    write(course.upstream, {"tools/install.py": note, "pyproject.toml": "2\n", "pip.py": note})
    course.commit("requirements")
    noted.parent.mkdir()
    if made_by == "make":
        (course.clone / ".venv/installed.json").touch()
    done = course.update(PYTHONPATH=f"{course.environment()['PYTHONPATH']}")
    assert done.returncode == 0, done.stderr
    # run in the clone, `python -m pip` finds the clone's pip.py
    assert noted.read_text() == ("." if made_by == "make" else "install -c constraints.txt -e ..")


def test_requirements_that_cannot_be_installed(course: Course) -> None:
    write(course.upstream, {"tools/install.py": "raise SystemExit(1)"})
    course.commit("requirements")
    write(course.clone, {".venv/installed.json": "{}"})
    assert "is updated, but what it needs could not be installed" in one_line(course.update())
    assert course.is_version_2()
