"""The course's repository and a learner's clone of it."""

import contextlib
import io
import json
import os
import subprocess
import sys
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
    cell = {"cell_type": "code", "execution_count": count, "metadata": {}, "source": [text]}
    book = {"cells": [cell | {"outputs": outputs}], "metadata": {"run": count}, "nbformat": 4}
    return json.dumps(book | {"nbformat_minor": 5}, indent=1) + "\n"


class Course:
    """The course's repository at version 1, and a learner's clone of it, in a path with a space."""

    def __init__(self, root: Path) -> None:
        self.upstream, self.clone = root / "upstream", root / "the clone"
        self.work = self.clone / "my_work"
        places = (f"{folder}/{name}" for folder in ("notebooks", "exercises") for name in CHAPTERS)
        files = {f"{place}.ipynb": notebook("1") for place in places}
        files |= {".gitignore": "my_work/\n.venv/\n", "README.md": "one\n"}
        files |= {"lib/code.py": "one = 1\n", "pyproject.toml": "1\n"}
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
        changed = (*(f"notebooks/{name}" for name in (*CHAPTERS, "09_speed")), "exercises/06_loop")
        files = {f"{name}.ipynb": notebook("2") for name in changed}
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
            "PYTHONPATH": str(Path(__file__).parents[2]),
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
        found = (str(path) for path in files_in(self.clone) if not path.name.startswith(".update"))
        return {path: Path(path).read_text() for path in found if ".git/" not in path}


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
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):  # set where a hook starts the tests
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
