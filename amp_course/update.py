"""Update a clone of the course to its next version; what the learner changed is kept in my_work/.

Reading a chapter changes its notebook file, for JupyterLab saves outputs and counts, and then a
plain `git pull` refuses. So the learner's versions are moved to `my_work/before-update-2026-11-21/`
first. A kill at any moment is harmless: everything new is fetched before anything is touched; a
learner's file is moved before git writes in its place; and the next run also moves a file that git
left half written.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from amp_course import lab, work
from amp_course.kit import files
from amp_course.kit.errors import CourseError, describe_os_error
from amp_course.kit.git import Git
from amp_course.kit.paths import course_root, work_dir

REQUIREMENTS = ("pyproject.toml", "constraints.txt", "environment.yml")


def update() -> None:
    """Update the clone, its environment and the learner's exercises; print what was done.

    Raises CourseError, before anything is touched, if this is no clone, has no upstream branch or
    cannot reach it, has commits of its own, or is open in JupyterLab.
    """
    git, work_folder = Git(course_root()), work_dir()
    before = git("rev-parse", "HEAD").strip()
    with _alone_in(work_folder):
        kept_folder = _unused_folder(work_folder)
        with _finished_later(work_folder / ".update-unfinished", kept_folder):
            target = _fetch(git)
            if target == before:
                print("You have the newest version of the course.")
            else:
                _refuse_if_open(git.root)
                kept = _put_aside(git, target, kept_folder)
                git("merge", "--ff-only", "--quiet", target)
                print("The course is now its newest version; CHANGELOG.md says what is new.")
                if kept:
                    print(f"What you had changed is kept in {kept_folder}: {', '.join(kept)}.")
    _renew_environment(git, before)
    for change in work.copy_missing():
        print(change.message)


def _fetch(git: Git) -> str:
    """Fetch the upstream branch; return its commit, or the current one if nothing is new."""
    branch = git("symbolic-ref", "--short", "-q", "HEAD", check=False).strip()
    if not branch:
        raise CourseError(
            f"{git.root} is set to one fixed version (git calls this a detached HEAD): go back to "
            "the course's branch with `git switch main`, then update."
        )
    if not git("rev-parse", "--abbrev-ref", "@{upstream}", check=False).strip():
        raise CourseError(
            f"the branch {branch} of {git.root} follows no branch of the course: `git branch "
            "--set-upstream-to=origin/main` makes it follow the usual one; then update."
        )
    print("Looking for a new version ...", flush=True)
    try:
        git("-c", "http.lowSpeedLimit=1000", "-c", "http.lowSpeedTime=30", "fetch", "--quiet")
    except CourseError as error:
        raise CourseError(
            f"the new version could not be fetched, and nothing was changed. {error}"
        ) from error
    target = git("rev-parse", "@{upstream}").strip()
    if git.succeeds("merge-base", "--is-ancestor", target, "HEAD"):
        return git("rev-parse", "HEAD").strip()
    if not git.succeeds("merge-base", "--is-ancestor", "HEAD", target):
        raise CourseError(
            f"the branch {branch} has commits that the course does not have, so nothing was "
            "changed: put them on top of the new version with `git pull --rebase --autostash`, or "
            "keep them on a branch of their own with `git switch -c mine`."
        )
    return target


def _put_aside(git: Git, target: str, kept_folder: Path) -> list[str]:
    """Move what the learner changed, and whatever is in the way, to the folder, and restore the
    course's own version.

    That is every changed notebook, and every other changed file that the new version changes too. A
    file that equals either version of the course is not the learner's. Returns the names of the
    files that were moved.
    """
    git.succeeds("update-index", "-q", "--refresh")
    # Not `git diff`: it ignores files that differ only in line endings, for which a merge refuses.
    changed = git.names("diff-index", "--name-only", "--no-renames", "HEAD")
    incoming = git.names("diff", "--name-only", "--no-renames", "HEAD", target)
    in_head = git.names("ls-tree", "-r", "--name-only", "HEAD")
    theirs = {name for name in changed & in_head if name.endswith(".ipynb")} | (changed & incoming)
    obstacles = {_obstacle(git.root, name) for name in incoming - in_head}
    in_the_way = {obstacle for obstacle in obstacles if obstacle}
    kept = []
    for name in sorted(theirs | in_the_way):
        path = git.root / name
        if not os.path.lexists(path) or _is_the_courses(git, name, target):
            continue
        (kept_folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.move(path, kept_folder / name)  # in one step if possible, as an editor may save it
        kept.append(name)
    for name in sorted(in_the_way):
        (git.root / name).unlink(missing_ok=True)
    if new := sorted((theirs | in_the_way) - in_head):
        git("rm", "--cached", "-r", "--quiet", "--ignore-unmatch", "--", *new)
    if old := sorted(theirs & in_head):
        git("checkout", "--quiet", "HEAD", "--", *old)
    return kept


def _obstacle(root: Path, name: str) -> str | None:
    """Return what is in the way of a new file: a file or folder of that name,
    or a file where its folder should be.
    """
    for part in (Path(name), *Path(name).parents[:-1]):
        path = root / part
        if os.path.lexists(path):
            return None if path.is_dir() and part != Path(name) else part.as_posix()
    return None


def _is_the_courses(git: Git, name: str, target: str) -> bool:
    """Return True if a file equals the course's current version of it, or the new one."""
    path = git.root / name
    if path.is_symlink() or not path.is_file():
        return False
    blob = git("hash-object", f"--path={name}", str(path)).strip()
    return blob in {
        git("rev-parse", "-q", "--verify", f"{at}:{name}", check=False).strip()
        for at in ("HEAD", target)
    }


def _refuse_if_open(root: Path) -> None:
    """Raise CourseError if this user's JupyterLab is running in the course:
    it may have unsaved changes.
    """
    from jupyter_core.paths import jupyter_runtime_dir

    lab.use_writable_folders()
    # each running server has such a file
    for record in Path(jupyter_runtime_dir()).glob("jpserver-*.json"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            server = json.loads(record.read_text(encoding="utf-8"))
            if Path(server["root_dir"]).resolve().is_relative_to(root) and _listens(server["port"]):
                raise CourseError(
                    f"JupyterLab is running in {server['root_dir']} (port {server['port']}): save "
                    "your notebooks, stop it with Ctrl-C in its terminal, then update. Nothing was "
                    "changed."
                )


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((lab.ADDRESS, port), timeout=2):
        return True
    return False


def _renew_environment(git: Git, before: str) -> None:
    """Install what the new version needs: with the script that made `.venv`,
    else with pip if the requirements changed.
    """
    if (git.root / ".venv" / "installed.json").exists():
        command = [sys.executable, "tools/install.py"]  # does nothing if everything is installed
    elif git.succeeds("diff", "--quiet", before, "HEAD", "--", *REQUIREMENTS):
        return
    elif sys.prefix == sys.base_prefix:
        print(
            "It needs other packages than before. With conda: conda env update -f environment.yml"
        )
        return
    else:
        command = [sys.executable, "-m", "pip", "install", "-c", "constraints.txt", "-e", "."]
    sys.stdout.flush()
    if subprocess.run(command, cwd=git.root).returncode:
        raise CourseError(
            "the course is updated, but what it needs could not be installed, for the reason "
            f"above. When that is put right, run in {git.root}: python {' '.join(command[1:])}"
        )


def _unused_folder(work_folder: Path) -> Path:
    day = f"before-update-{datetime.now():%Y-%m-%d}"
    names = itertools.chain([day], (f"{day}-{count}" for count in itertools.count(2)))
    return next(work_folder / name for name in names if not os.path.lexists(work_folder / name))


@contextlib.contextmanager
def _alone_in(work_folder: Path) -> Iterator[None]:
    """Keep a second update out; turn an OSError into one line with a fix."""
    try:
        work_folder.mkdir(parents=True, exist_ok=True)
        with files.locked(work_folder / "update", seconds=0.5):
            yield
    except TimeoutError as error:
        raise CourseError(
            "another `amp-course update` is running in this course: wait until it has ended."
        ) from error
    except OSError as error:
        raise CourseError(
            describe_os_error(error, "the course was not updated, and nothing of yours is lost")
        ) from error


@contextlib.contextmanager
def _finished_later(marker: Path, kept_folder: Path) -> Iterator[None]:
    """Leave a marker until the block ends; if a killed run left one, say so."""
    if marker.exists():
        earlier = Path(marker.read_text(encoding="utf-8"))
        has_moved = earlier.name and earlier.is_dir()
        moved = f" Files of yours that it moved are in {earlier}." if has_moved else ""
        print(f"The last update was interrupted; this one finishes it.{moved}")
    files.write_text(marker, str(kept_folder))
    try:
        yield
    except (CourseError, OSError) as error:
        marker.unlink()
        text = str(error)
        if isinstance(error, OSError):
            text = describe_os_error(error, "the update stopped")
        kept = f" What you had changed is kept in {kept_folder}." if kept_folder.is_dir() else ""
        raise CourseError(text + kept) from error
    marker.unlink()
