"""`amp-course update` that cannot go on, or is stopped: nothing is lost."""

import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from tests.update.conftest import (
    Course,
    git,
    notebook,
    one_line,
    read_everything,
    write,
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
    after = sorted(course.snapshot().values())
    assert after[: len(before)] == before or hinder is refuse_git_at_work
    assert notebook("1", count=7, output="8.1 ms") in course.snapshot().values()


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
        assert set(mine.values()) <= set(course.snapshot().values()), f"kill {kill}"


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
        assert "JupyterLab is running in" in one_line(done)
        assert "save your notebooks, stop it with Ctrl-C" in done.stderr
        assert course.kept() == {} and set(mine.values()) <= set(course.snapshot().values())
    # Its record is there, but nothing listens
    assert course.update(JUPYTER_RUNTIME_DIR=str(runtime)).returncode == 0


@pytest.mark.parametrize("made_by", ["make", "pip"])
def test_changed_requirements_are_installed(course: Course, made_by: str) -> None:
    noted = course.clone / ".venv/noted"  # tools/install.py or pip writes how it was called
    writes = f"pathlib.Path({str(noted)!r}).write_text(' '.join(sys.argv[1:]) + '.')"
    note = f"import sys, pathlib; {writes}"
    write(course.upstream, {"tools/install.py": note, "pyproject.toml": "2\n", "pip.py": note})
    course.commit("requirements")
    noted.parent.mkdir()
    if made_by == "make":
        (course.clone / ".venv/installed.json").touch()
    done = course.update()
    assert done.returncode == 0, done.stderr
    # run in the clone, `python -m pip` finds the clone's pip.py
    assert noted.read_text() == ("." if made_by == "make" else "install -c constraints.txt -e ..")


def test_requirements_that_cannot_be_installed(course: Course) -> None:
    write(course.upstream, {"tools/install.py": "raise SystemExit(1)"})
    course.commit("requirements")
    write(course.clone, {".venv/installed.json": "{}"})
    assert "is updated, but what it needs could not be installed" in one_line(course.update())
    assert course.is_version_2()
