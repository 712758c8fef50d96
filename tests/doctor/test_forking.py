"""A script that is forked runs as one that `python` starts, which is the oracle here."""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from amp_course.debugging.clinic.ward import find_patient
from amp_course.doctor import examine_script
from amp_course.doctor.forking import ForkServer, fork_servers
from amp_course.doctor.running import run_script
from amp_course.kit.errors import CourseError

pytestmark = [
    pytest.mark.slow,  # `make test` would take too long with it
    pytest.mark.skipif(sys.platform != "linux", reason="forks of a process with torch are safe on Linux only"),
]

SCRIPT = """
import atexit, os, sys, threading, time, torch
atexit.register(print, "at exit")
threading.Thread(target=lambda: (time.sleep(0.2), print("a thread ends"))).start()
print(__name__, sys.argv[1:], os.path.basename(sys.path[0]), os.getcwd(), os.environ["PYTHONUNBUFFERED"])
print(torch.get_num_threads(), os.getpid() == os.getsid(0), sys.stdin.read() == "", torch.rand(1).item() >= 0)
{end}
"""
ENDS = {
    "plain": "",
    "exit code": "sys.exit(3)",
    "exit with text": "sys.exit('enough')",
    "error": "raise KeyError('lost')",
    "hard exit": "sys.stdout.flush(); os._exit(7)",
    "signal": "sys.stdout.flush(); os.kill(os.getpid(), 9)",
}


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with fork_servers() as (started,):
        yield started


@pytest.mark.parametrize("end", ENDS)
def test_a_fork_ends_as_a_command_does(end: str, server: ForkServer, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(end=ENDS[end]))
    outcomes = []
    for how in (None, server):
        folder = tmp_path / ("command" if how is None else "fork")
        folder.mkdir()
        outcomes.append(run_script(script, ["--one", "2"], 3, 60.0, folder, threads=1, server=how))
    command, fork = outcomes
    assert fork.code == command.code and not fork.late
    own = [line for line in command.lines if not line.startswith("  ") and "Traceback" not in line]
    assert own and [line for line in fork.lines if line in own] == own


def test_a_fork_that_runs_too_long_is_ended_and_the_next_one_runs(server: ForkServer, tmp_path: Path) -> None:
    endless = tmp_path / "endless.py"
    endless.write_text("import time\nprint('begins', flush=True)\ntime.sleep(99)\n")
    found = examine_script(endless, seconds=2, server=server)
    assert found.exit_code == 2 and "In 2 seconds" in found.problem
    assert examine_script(find_patient("masked_rows"), server=server).names == ("masked-row",)


def test_the_caller_is_told_if_the_server_is_gone(tmp_path: Path) -> None:
    ours, theirs = multiprocessing.Pipe()
    theirs.close()
    with ours, pytest.raises(CourseError, match="out of memory"):
        examine_script(find_patient("masked_rows"), server=ForkServer(ours))


def test_two_servers_run_scripts_at_once_and_end_with_their_block(tmp_path: Path) -> None:
    def run(number: int, server: ForkServer) -> tuple[str, ...]:
        """Wait in one script for the other's file: only two that run at once can both end."""
        script, folder = tmp_path / f"script{number}.py", tmp_path / f"folder{number}"
        folder.mkdir()
        mine, other = tmp_path / f"file{number}", tmp_path / f"file{1 - number}"
        waits = f"while not os.path.exists({str(other)!r}): time.sleep(0.01)"
        script.write_text(f"import os, time\nopen({str(mine)!r}, 'w')\n{waits}\nprint('server', os.getppid())\n")
        return run_script(script, [], 3, 60.0, folder, threads=1, server=server).lines

    with fork_servers(2) as servers, ThreadPoolExecutor(2) as pool:
        lines = [line for lines in pool.map(run, range(2), servers) for line in lines]
    parents = {int(line.split()[-1]) for line in lines if line.startswith("server")}
    assert len(parents) == 2
    deadline = time.monotonic() + 10
    while any(runs(pid) for pid in parents):
        assert time.monotonic() < deadline, "a server outlives its block"
        time.sleep(0.01)


def runs(pid: int) -> bool:
    """Tell whether a process runs: one that has ended and waits to be reaped has no command line any more."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except FileNotFoundError:
        return False
