"""Ask git about one clone, in this module's terms: names as sets, a failure as one line."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from amp_course.kit.errors import CourseError


class Git:
    """git in the clone at `root`: `git("rev-parse", "HEAD")` → what it printed.

    Raises CourseError where git is not installed, and where `root` is not the top folder of a
    clone.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        if not (program := shutil.which("git")):
            raise CourseError(
                "updating needs git, which is not installed: install it from https://git-scm.com "
                "or with your system's packages, then update."
            )
        # Paths are names here, never patterns; a pager or an editor would wait for a reader who
        # does not see it.
        self.program = [program, "--literal-pathspecs", "--no-pager"]
        # Set where a hook of git's starts us: they would turn git to another repository.
        foreign = {
            "GIT_DIR",
            "GIT_WORK_TREE",
            "GIT_INDEX_FILE",
            "GIT_PREFIX",
            "GIT_COMMON_DIR",
            "GIT_OBJECT_DIRECTORY",
        }
        self.environment = {key: value for key, value in os.environ.items() if key not in foreign}
        # a folder of the reader's own repository is no clone of the course either
        if not (root / ".git").exists():
            raise CourseError(
                f"{root} is not a clone made with git, so it cannot be updated in place. Get the "
                f"course again in a new folder (the README says how), and copy the folder my_work "
                f"from here to there: your work and progress go with it."
            )

    def __call__(self, *arguments: str, check: bool = True) -> str:
        """Run a git command; return its output. With check, raises CourseError if it fails;
        without, what it printed counts.
        """
        done = self._run(arguments)
        if check and done.returncode:
            said = " ".join(done.stderr.decode("utf-8", "replace").split())[:600]
            raise CourseError(
                f"git {_command(arguments)} failed: {said or f'exit code {done.returncode}'} (Put "
                f"that right, then try again.)"
            )
        return done.stdout.decode("utf-8", "surrogateescape")

    def succeeds(self, *arguments: str) -> bool:
        """Run a git command; return True if its exit code was 0."""
        return self._run(arguments).returncode == 0

    def _run(self, arguments: tuple[str, ...]) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [*self.program, *arguments],
            cwd=self.root,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
        )

    def names(self, *arguments: str) -> set[str]:
        """Run a git command that lists files; return their names, relative to the root."""
        command, *rest = arguments
        return {name for name in self(command, "-z", *rest).split("\0") if name}


def _command(arguments: tuple[str, ...]) -> str:
    """Find the command among git's arguments: ("-c", "a.b=1", "fetch", "--quiet") → "fetch"."""
    return next(word for word in arguments if not word.startswith("-") and "=" not in word)
