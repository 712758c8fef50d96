"""The progress file, written by processes at once or killed meanwhile: nothing is lost."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

# One import of torch, then forks
PROCESSES = """
import json, os, pathlib, random, signal, sys, time
from amp_course.checking import progress

def child(work):
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    return pid

def write_on(name):
    while True:
        progress.record(name, "correct")

def kills(rounds):
    # A large file, so that many a kill comes while it is written.
    padding = list(range(5000))
    path = progress.progress_file()
    before = {"loop.before": {"state": "correct"}}
    path.write_text(json.dumps({"padding": padding, "exercises": before}))
    chance, amid, torn = random.Random(0), 0, 0
    for number in range(rounds):
        pid = child(lambda: write_on("loop.killed"))
        time.sleep(0.004 + 0.02 * chance.random())
        os.kill(pid, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
        amid += path.with_name("progress.json.part").exists()
        if number % 2:  # else the next one finds what the killed one left behind
            path.with_name("progress.json.part").unlink(missing_ok=True)
        seen = progress.load()
        whole = seen.data.get("padding") == padding and seen.state("loop.before") == "correct"
        torn += seen.note is not None or not whole
    return {"amid": amid, "torn": torn}

def together(writers, times):
    def write(n):
        for _ in range(times):
            progress.record(f"loop.{n % 2}", "not yet")
    pids = [child(lambda n=n: write(n)) for n in range(writers)]
    for pid in pids:
        os.waitpid(pid, 0)
    return [progress.load().history(f"loop.{n}")["attempts"] for n in (0, 1)]

def run(name, task, *args):
    folder = pathlib.Path(sys.argv[1], name)
    folder.mkdir()
    os.environ["AMP_COURSE_WORK"] = str(folder)
    progress.record("loop.first", "not yet")  # imports what it needs before the forks
    progress.progress_file().unlink()
    return task(*args)

print(json.dumps({"kills": run("kills", kills, 40), "together": run("together", together, 4, 25)}))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What processes left that were killed, or wrote at once."""
    if not hasattr(os, "fork"):
        pytest.skip("this system has no fork")
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", PROCESSES, str(tmp_path_factory.mktemp("processes"))]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=100)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.slow
def test_killed_in_the_middle_of_writing(found: dict[str, Any]) -> None:
    assert found["kills"]["torn"] == 0
    assert found["kills"]["amid"] > 0  # some did come in the middle; on a busy machine, all


@pytest.mark.slow
def test_processes_at_once_lose_nothing(found: dict[str, Any]) -> None:
    assert found["together"] == [50, 50]
