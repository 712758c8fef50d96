"""No process outlives a run: not after its end, a failure, an interrupt,
nor the death of any process that takes part.
"""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from amp_course.distributed.launching import run_script

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
time.sleep(600)
"""
CALLER = """
import sys
from amp_course.distributed.launching import run_script
print(run_script(*sys.argv[1:], seconds=60).problem)
"""


def write_script(folder):
    (folder / "pids").mkdir()
    path = folder / "train.py"
    path.write_text(SCRIPT)
    return path


def until(true, what, seconds=90):
    """Wait until something is true."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def recorded(script):
    """Return the processes that the ranks have written down: themselves and their children."""
    return [int(pid) for name in os.listdir(script.parent / "pids") for pid in name.split("-")]


def alive(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


# name → the ancestor of a rank to kill (1: torchrun, 2: the caller of run_script), the signal, and
# what the caller prints
KILLS = {
    "interrupt": (2, signal.SIGINT, "KeyboardInterrupt"),
    "kernel ended": (2, signal.SIGTERM, ""),
    "kernel killed": (2, signal.SIGKILL, ""),
    "torchrun killed": (1, signal.SIGKILL, "torchrun itself was killed by signal 9 (SIGKILL)"),
}


@pytest.fixture(scope="module")
def callers(
    tmp_path_factory,
):
    """Start four processes that call run_script, all at once."""
    started = {}
    for name in KILLS:
        script = write_script(tmp_path_factory.mktemp("caller"))
        command = [sys.executable, "-c", CALLER, str(script), str(script.parent / "pids"), "wait"]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        started[name] = subprocess.Popen(command, **streams), script
    yield started
    for caller, _ in started.values():  # those whose tests ran in another process
        caller.kill()
        caller.communicate()


@pytest.mark.parametrize("name", KILLS)
def test_nothing_is_left_after_a_kill(callers, name):
    caller, script = callers[name]
    until(lambda: len(recorded(script)) == 4, "the ranks never started")
    # caller, torchrun, ranks and their children
    processes = psutil.Process(caller.pid).children(recursive=True)
    assert len(processes) >= 5
    above, number, words = KILLS[name]
    chain = psutil.Process(recorded(script)[0]).parents()
    assert chain[1].pid == caller.pid
    chain[above - 1].send_signal(number)
    printed, _ = caller.communicate(timeout=40)
    until(lambda: not any(alive(one.pid) for one in processes), f"left behind: {processes}")
    assert words in printed


@pytest.mark.parametrize(
    ("how", "words", "seconds"), [("fail", "ValueError: planned", 60), ("hang", "time was up", 25)]
)
def test_nothing_is_left_after_a_run(tmp_path, how, words, seconds):
    script = write_script(tmp_path)
    run = run_script(script, tmp_path / "pids", how, seconds=seconds)
    assert words in str(run.problem)
    assert run.seconds < seconds + 5
    pids = recorded(script)
    assert len(pids) == 4 and not any(map(alive, pids))
