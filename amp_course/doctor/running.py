"""Run a script, examined, in a process of its own, and end all that it started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from amp_course.doctor import inside
from amp_course.doctor.forking import ForkServer

_GRACE = 15.0  # seconds that the processes get to write what they found
_LAST = 12  # lines of the script's output
_PLAIN = {"PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1", "MPLBACKEND": "Agg"}


@dataclass(frozen=True)
class Outcome:
    """How a script's run ended: its exit code, the last lines that it printed, and whether it had to be killed."""

    code: int
    lines: tuple[str, ...]
    late: bool


class _Process(Protocol):
    pid: int

    def wait(self, timeout: float | None = None) -> int: ...
    def poll(self) -> int | None: ...


def run_script(
    path: Path,
    args: Sequence[str],
    steps: int,
    seconds: float,
    folder: Path,
    *,
    keep_files: bool = False,
    threads: int | None = None,
    ranks: int = 1,
    server: ForkServer | None = None,
) -> Outcome:
    """Run a script until it ends, has made its steps, or is out of time; what its processes found is left in `folder`.

    server: forks the process, unless there are several ranks; without one, it is started as a command
    """
    keep = "" if keep_files else os.pathsep.join([str(path.resolve().parent), os.getcwd()])
    arguments = [str(folder), str(steps), str(seconds), keep, str(path), *args]
    environment = os.environ | _PLAIN | ({} if threads is None else {"OMP_NUM_THREADS": str(threads)})
    output = folder / "output"
    process: _Process
    if server is not None and ranks == 1:
        process = server.start(arguments, output, environment)
    else:
        process = _command(arguments, output, environment, ranks)
    late = False
    try:
        code = process.wait(seconds + _GRACE)
    except subprocess.TimeoutExpired:
        late = True
    finally:
        end(process)
    code = process.wait()
    text = output.read_bytes()[-20_000:].decode("utf-8", "replace")
    return Outcome(code, tuple([line.rstrip() for line in text.splitlines() if line.strip()][-_LAST:]), late)


def _command(
    arguments: Sequence[str], output: Path, environment: dict[str, str], ranks: int
) -> subprocess.Popen[bytes]:
    launcher = [] if ranks == 1 else ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    with open(output, "wb") as file:
        return subprocess.Popen(
            [sys.executable, *launcher, inside.__file__, *arguments], env=environment, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
        )  # fmt: skip


def end(process: _Process) -> None:
    """End a process and all that it started; those that write get a moment."""
    for number, patience in ((signal.SIGTERM, 2.0), (signal.SIGKILL, 5.0)):
        try:
            os.killpg(process.pid, number)
        except (ProcessLookupError, PermissionError):
            break
        until = time.monotonic() + patience
        while time.monotonic() < until and process.poll() is None:
            time.sleep(0.05)
        if number is signal.SIGTERM:
            time.sleep(0.2)
