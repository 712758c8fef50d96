"""Run child processes: in a session of their own, for a limited time, ended with all they started.

All that a child starts inherits a token in its environment, by which it is found even if it has a
session of its own, as torchrun gives to each rank, or if its parent has ended. This needs psutil;
without it, the child's process group is ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import IO, Any

from amp_course.kit.errors import CourseError

TOKEN = "AMP_COURSE_RUN"  # the variable with the token
_KILL = getattr(signal, "SIGKILL", signal.SIGTERM)  # Windows has none


class ChildError(CourseError):
    """A process could not be started, or failed; the message says why."""


class ChildTimeout(ChildError):
    """A process was ended because its time was up."""


class Child(subprocess.Popen[bytes]):
    """A process that can be ended together with all that it started.

    environment: all its variables; by default those of this process
    streams:     other arguments of `subprocess.Popen`; stdin is empty by default
    Raises ChildError if it cannot be started.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str] | None = None,
        **streams: Any,
    ) -> None:
        self.token = uuid.uuid4().hex
        variables = {**(os.environ if environment is None else environment), TOKEN: self.token}
        streams = {"stdin": subprocess.DEVNULL, "start_new_session": os.name == "posix"} | streams
        try:
            super().__init__(arguments, env=variables, **streams)
        except OSError as error:
            raise ChildError(f"a new process could not be started: {error.strerror}") from error

    def end(self, patience: float = 1.0) -> None:
        """Ask it and all that it started to end; kill what is left after `patience` seconds."""
        found: set[Any] = set()  # a process that is about to end has no environment any more
        for number, seconds in ((signal.SIGTERM, patience), (_KILL, 5.0)):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number) if os.name == "posix" else self.kill()
            found.update(family(self.token))
            for process in found:
                with contextlib.suppress(Exception):  # it has just ended
                    process.send_signal(number)
            until = time.monotonic() + seconds
            while self.poll() is None or any(map(_runs, found.union(family(self.token)))):
                if time.monotonic() >= until:
                    break
                time.sleep(0.02)
            else:
                return


def family(token: str) -> list[Any]:
    """Return the `psutil.Process` of each other running process with this token."""
    try:
        import psutil
    except ImportError:  # in a user's own environment
        return []
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            mine = process.pid != os.getpid() and process.environ().get(TOKEN) == token
            if mine and _runs(process):
                found.append(process)
    return found


def _runs(process: Any) -> bool:
    """Return True if a `psutil.Process` has not ended; a zombie has."""
    import psutil

    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def run_python(
    code: str, *, environment: Mapping[str, str] | None = None, seconds: float = 60
) -> str:
    """Return the last line that `code` prints in a new process, as for what is set before torch.

    Raises ChildError with the last line of its errors, or with the reason why it did not run.
    Example: run_python("print(6 * 7)") → "42"
    """
    # Files, not pipes: a pipe stays open as long as anything that the child started.
    with tempfile.TemporaryFile() as printed, tempfile.TemporaryFile() as errors:
        child = Child([sys.executable, "-c", code], environment, stdout=printed, stderr=errors)
        try:
            exit_code = child.wait(seconds)
        except subprocess.TimeoutExpired:
            raise ChildTimeout(f"it was not done after {seconds:.0f} s") from None
        finally:
            child.end(0.0)
        lines = last_words(errors if exit_code else printed)
    if not lines:
        raise ChildError(f"the new process ended with exit code {exit_code}")
    if exit_code:
        raise ChildError(lines[-1])
    return lines[-1]


def last_words(file: IO[bytes]) -> list[str]:
    """Return the lines that a process left in a file."""
    file.seek(0)
    return file.read().decode(errors="replace").strip().splitlines()
