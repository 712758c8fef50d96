"""Run git in a clone, with file names as sets and failures as one line."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from amp_course.kit.errors import CourseError


class Git:
    """git in the clone at `root`: `git("rev-parse", "HEAD")` → what it printed.

    Raises CourseError if git is not installed or `root` is not the top folder of a clone.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        if not (program := shutil.which("git")):
            raise CourseError(
                "updating needs git, which is not installed: install it from https://git-scm.com "
                "or with your system's packages, then update."
            )
        # Paths are names here, never patterns; a pager would wait for a user who does not see it.
        self.program = [program, "--literal-pathspecs", "--no-pager"]
        # Set if a git hook starts us: with these, git would use another repository.
        foreign = {
            "GIT_DIR",
            "GIT_WORK_TREE",
            "GIT_INDEX_FILE",
            "GIT_PREFIX",
            "GIT_COMMON_DIR",
            "GIT_OBJECT_DIRECTORY",
        }
        self.environment = {key: value for key, value in os.environ.items() if key not in foreign}
        # nor is a folder inside another repository a clone of the course
        if not (root / ".git").exists():
            raise CourseError(
                f"{root} is not a clone made with git, so it cannot be updated in place. Get the "
                "course again in a new folder (the README says how), and copy the folder my_work "
                "from here to there: your work and progress go with it."
            )

    def __call__(self, *arguments: str, check: bool = True) -> str:
        """Run a git command; return its output. With check, raises CourseError if it fails."""
        done = self._run(arguments)
        if check and done.returncode:
            words = arguments  # find "fetch" in ("-c", "a.b=1", "fetch", "--quiet")
            command = next(word for word in words if not word.startswith("-") and "=" not in word)
            error = " ".join(done.stderr.decode("utf-8", "replace").split())[:600]
            raise CourseError(
                f"git {command} failed: {error or f'exit code {done.returncode}'} (Put that right, "
                "then try again.)"
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
