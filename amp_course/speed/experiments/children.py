"""Run a piece of Python in a new process, which ends with the call: for settings that must be there before torch is loaded."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping


class ChildError(RuntimeError):
    """The process did not get to its end; the message says why, in words for the reader."""


class ChildTimeout(ChildError):
    """The process was ended because its time was up."""


def run_python(code: str, *, environment: Mapping[str, str] | None = None, seconds: float = 60) -> str:
    """Return the last line that `code` prints. Whatever it starts is ended with it, also on Ctrl-C or when time is up.

    Raises ChildError with the last line of its errors, or with what kept it from running.
    Example: run_python("print(6 * 7)") → "42"
    """
    # Files, not pipes: a pipe stays open for as long as anything that the child started does.
    with (
        tempfile.TemporaryFile("w+", errors="replace") as printed,
        tempfile.TemporaryFile("w+", errors="replace") as errors,
    ):
        try:
            child = subprocess.Popen(
                [sys.executable, "-c", code],
                env=None if environment is None else dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=errors,
                start_new_session=os.name == "posix",  # a group of its own, so that all of it can be ended
            )
        except OSError as error:
            raise ChildError(f"a new process could not be started: {error.strerror}") from error
        try:
            exit_code = child.wait(seconds)
        except subprocess.TimeoutExpired:
            raise ChildTimeout(f"it was not done after {seconds:.0f} s") from None
        finally:
            _end(child)
        said = errors if exit_code else printed
        said.seek(0)
        lines = said.read().strip().splitlines()
    if exit_code or not lines:
        raise ChildError(lines[-1] if lines else f"the new process ended with exit code {exit_code}")
    return lines[-1]


def _end(child: subprocess.Popen[bytes]) -> None:
    if os.name == "posix":
        with contextlib.suppress(ProcessLookupError, PermissionError):  # nothing of its group is left
            os.killpg(child.pid, signal.SIGKILL)
    elif child.poll() is None:
        child.kill()
    child.wait()
