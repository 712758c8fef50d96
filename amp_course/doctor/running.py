"""Run and examine a script in a process of its own, and end all that it started."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from amp_course.kit.children import Child
from amp_course.kit.markup import without_codes

# A file in the folder of a run that asks its processes to end and to write what they found
STOP = "stop"
WRITING = ".part"  # ends the name of a result that a process is writing
_MOMENT = 5.0  # seconds that they then have
_GRACE = 15.0  # seconds that they have once their time is up
# Not imported, so that this process needs no torch
_INSIDE = Path(__file__).with_name("inside.py")
_LAST = 12  # lines of the script's output
_PLAIN = {"PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1", "MPLBACKEND": "Agg"}
# The answer to whatever the script asks its terminal
_END_OF_INPUT = b"\x04" * 64


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    lines:       the last ones that it printed
    late:        it had to be killed
    interrupted: by Ctrl-C
    """

    code: int
    lines: tuple[str, ...]
    late: bool
    interrupted: bool = False


def run_script(
    command: Sequence[str],
    steps: int,
    seconds: float,
    folder: Path,
    *,
    keep_files: bool = False,
    threads: int | None = None,
    ranks: int = 1,
    progress: Callable[[int], None] | None = None,
) -> Outcome:
    """Run a script until it ends or its time is up; its processes write their results to `folder`.

    command:  what follows `python`: a script or `-m` and a module, then arguments
    progress: called a few times a second with the number of updates so far
    """
    here = os.getcwd() if command[0] == "-m" else os.path.dirname(os.path.abspath(command[0]))
    keep = "" if keep_files else os.pathsep.join([here, os.getcwd()])
    words = [sys.executable]
    if ranks > 1:
        words += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    # Importing torch takes long on a slow disk, and our own clock does not wait for that.
    end = time.time() + seconds
    words += [str(_INSIDE), str(folder), str(steps), str(end), keep, *command]
    environment = os.environ | _PLAIN
    if threads is not None:
        environment["OMP_NUM_THREADS"] = str(threads)
    output, late, interrupted = folder / "output", False, False
    with _streams(output) as (stdin, stdout):
        process = Child(words, environment, stdin=stdin, stdout=stdout, stderr=stdout)
        try:
            late = not _ends(process, seconds + _GRACE, folder / "progress", progress)
        except KeyboardInterrupt:
            interrupted = True
            (folder / STOP).touch()
            _ends(process, _MOMENT, folder / "progress", None)
        finally:
            until = time.monotonic() + _GRACE
            while any(folder.glob(f"*{WRITING}")) and time.monotonic() < until:
                time.sleep(0.05)
            process.end(2.0)
    return Outcome(process.wait(), last_lines(output.read_bytes()), late, interrupted)


@contextlib.contextmanager
def _streams(output: Path) -> Iterator[tuple[int | None, int]]:
    """Yield stdin and stdout for a script whose output goes into a file.

    If this process has a terminal, the script gets one of the same size; else it gets our stdin.
    """
    with open(output, "wb") as file, contextlib.ExitStack() as stack:
        if not os.isatty(0):
            yield None, file.fileno()
            return
        import termios  # Windows has neither this nor such terminals

        ours, theirs = os.openpty()
        stack.callback(os.close, ours)
        settings = termios.tcgetattr(theirs)
        settings[3] &= ~termios.ECHO
        termios.tcsetattr(theirs, termios.TCSANOW, settings)
        termios.tcsetwinsize(theirs, termios.tcgetwinsize(0))
        os.write(ours, _END_OF_INPUT)
        reader = threading.Thread(target=_copy, args=(ours, file), daemon=True)
        reader.start()
        try:
            yield theirs, theirs
        finally:
            os.close(theirs)
            reader.join(2.0)


def _copy(source: int, file: BinaryIO) -> None:
    """Copy what a terminal shows until its last writer has closed it."""
    with contextlib.suppress(OSError, ValueError):
        while data := os.read(source, 65536):
            file.write(data)


def _ends(
    process: Child, seconds: float, counter: Path, progress: Callable[[int], None] | None
) -> bool:
    """Wait for a process to end, at most so many seconds; return True if it has."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.2)
            return True
        if progress is not None:
            with contextlib.suppress(OSError, ValueError):
                progress(int(counter.read_text()))
    return False


def last_lines(output: bytes) -> tuple[str, ...]:
    """Return the last lines of an output as a terminal finally shows them.

    Example: b"a\r\x1b[31mb\x1b[0m\n" → ("b",)
    """
    text = without_codes(output[-20_000:].decode("utf-8", "replace")).replace("\r\n", "\n")
    lines = [line.rstrip("\r").rpartition("\r")[2].rstrip() for line in text.split("\n")]
    return tuple([line for line in lines if line][-_LAST:])
