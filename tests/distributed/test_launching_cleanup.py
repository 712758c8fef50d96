"""No process outlives a run: not after its end, a failure, an interrupt,
nor the death of any process that takes part.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from amp_course.distributed.launching import ScriptRun, run_script

pytestmark = pytest.mark.slow

# Each rank ignores SIGTERM and starts a process in a session of its own.
SCRIPT = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
child = subprocess.Popen(sleep, start_new_session=True)
open(f"{sys.argv[1]}/{os.getpid()}-{child.pid}", "x").close()
while len(os.listdir(sys.argv[1])) < 2:
    time.sleep(0.01)
if sys.argv[2] == "fail" and os.environ["RANK"] == "1":
    raise ValueError("planned")
if sys.argv[2] in ("wait", "hang"):
    time.sleep(600)
"""
CALLER = """
import sys
from amp_course.distributed.launching import run_script
print(run_script(*sys.argv[1:], seconds=60).problem)
"""


def write_script(folder: Path) -> Path:
    (folder / "pids").mkdir()
    path = folder / "train.py"
    path.write_text(SCRIPT)
    return path


def until(true: Callable[[], object], what: str, seconds: float = 90) -> None:
    """Wait until something is true."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def recorded(script: Path) -> list[int]:
    """Return the processes that the ranks have written down: themselves and their children."""
    return [int(pid) for name in os.listdir(script.parent / "pids") for pid in name.split("-")]


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


# who is killed, counted from the rank upwards: its torchrun, and who called run_script; by which
# signal
KILLS = {
    "interrupt": (2, signal.SIGINT, "KeyboardInterrupt"),
    "kernel ended": (2, signal.SIGTERM, ""),
    "kernel killed": (2, signal.SIGKILL, ""),
    "torchrun killed": (1, signal.SIGKILL, "torchrun itself was killed by signal 9 (SIGKILL)"),
}


@pytest.fixture(scope="module")
def callers(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[str, tuple[subprocess.Popen[str], Path]]]:
    """Start four processes that call run_script, all at once."""
    started = {}
    for name in KILLS:
        script = write_script(tmp_path_factory.mktemp("caller"))
        started[name] = (
            subprocess.Popen(
                [sys.executable, "-c", CALLER, str(script), str(script.parent / "pids"), "wait"],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            ),
            script,
        )
    yield started
    for caller, _ in started.values():  # those whose tests ran in another process
        caller.kill()
        caller.communicate()


RUNS = {
    "end": [60.0],
    "fail": [60.0],
    "hang": [12.0, 30.0, 60.0],
}  # how the script goes → the seconds it gets


def run_until_it_starts(script: Path, how: str) -> ScriptRun:
    """Run the script; once more, with more seconds, if its ranks had not started when time was
    up.
    """
    for seconds in RUNS[how]:
        run = run_script(script, script.parent / "pids", how, seconds=seconds)
        if len(recorded(script)) == 4:
            break
        for one in (script.parent / "pids").iterdir():
            one.unlink()
    return run


@pytest.fixture(scope="module")
def runs(
    callers: object, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, tuple[Future[ScriptRun], Path]]]:
    """Run three scripts meanwhile, from this process."""
    with ThreadPoolExecutor(3) as pool:
        started = {}
        for how in RUNS:
            script = write_script(tmp_path_factory.mktemp("run"))
            started[how] = (pool.submit(run_until_it_starts, script, how), script)
        yield started


@pytest.mark.parametrize("name", KILLS)
def test_nothing_is_left_after_a_kill(
    callers: dict[str, "tuple[subprocess.Popen[str], Path]"], runs: object, name: str
) -> None:
    caller, script = callers[name]
    until(lambda: len(recorded(script)) == 4, "the ranks never started")
    processes = psutil.Process(caller.pid).children(
        recursive=True
    )  # torchrun, ranks and their children
    assert len(processes) >= 5
    above, number, told = KILLS[name]
    chain = psutil.Process(recorded(script)[0]).parents()
    assert chain[1].pid == caller.pid
    chain[above - 1].send_signal(number)
    said, _ = caller.communicate(timeout=40)
    until(lambda: not any(alive(one.pid) for one in processes), f"left behind: {processes}")
    assert told in said


@pytest.mark.parametrize("how", RUNS)
def test_nothing_is_left_after_a_run(
    runs: dict[str, "tuple[Future[ScriptRun], Path]"], how: str
) -> None:
    future, script = runs[how]
    run = future.result()
    assert run.ok == (how == "end"), run
    assert how == "end" or ("ValueError: planned" if how == "fail" else "time was up") in str(
        run.problem
    )
    assert run.seconds < max(RUNS[how]) + 5
    pids = recorded(script)
    assert len(pids) == 4
    assert not [pid for pid in pids if alive(pid)]
