"""Start commands, and see that no process of theirs outlives them, the time allowed, or the process that asked for them.

Run as a program by `guarded.py`: `python guardian.py FOLDER`, where FOLDER/job.json says what to start. It imports neither
torch nor the course, so it is at work within a tenth of a second. torchrun gives each rank a session of its own, so ending a
process group would miss them. Every process of a run is recognised by a variable in its environment; one that has cleared
its environment, by its parents. One that clears it and leaves its parents within a quarter of a second gets away.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil

TOKEN = "AMP_COURSE_RUN"  # the variable in the environment of each process of a run
FOLDER = "AMP_COURSE_RUN_FOLDER"  # where the ranks leave their records
_POLL = 0.05  # seconds between two looks at the commands
_FAMILY = 0.25  # and at their descendants
_GRACE = 1.0  # seconds between SIGTERM and SIGKILL
_DUMP = 2.0  # for a rank to write where it is
_LOCAL = ("127.0.0.1", "::1", "::ffff:127.0.0.1")
PATIENCE = 10.0  # for the other commands, once one of them has failed


class Family:
    """All processes of one run, even those whose parent has ended. Example: Family("0a1b").end()"""

    def __init__(self, token: str) -> None:
        self.token = token
        self.known: dict[int, psutil.Process] = {}

    def look(self, parents: Iterable[int]) -> None:
        """Remember all descendants of some processes."""
        for parent in parents:
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(parent)
                for one in [process, *process.children(recursive=True)]:
                    self.known.setdefault(one.pid, one)

    def alive(self) -> list[psutil.Process]:
        """Return those that still run: the remembered ones, and any whose environment has the token."""
        me = os.getpid()
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.pid != me and process.environ().get(TOKEN) == self.token:
                    self.known[process.pid] = process
        return [process for process in self.known.values() if _runs(process)]

    def end(self) -> None:
        """End them all: SIGTERM, a second later SIGKILL, until none is left."""
        asked = self.alive()
        for process in asked:
            with contextlib.suppress(psutil.Error):
                process.terminate()
        _wait(asked, _GRACE)
        for _ in range(20):
            left = self.alive()
            if not left:
                return
            for process in left:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            _wait(left, 0.5)


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _wait(processes: Iterable[psutil.Process], seconds: float) -> None:
    until = time.monotonic() + seconds
    while any(map(_runs, processes)) and time.monotonic() < until:
        time.sleep(0.01)


def _start(job: dict[str, Any], folder: Path) -> list[subprocess.Popen[bytes]]:
    started = []
    for number, command in enumerate(job["commands"]):
        environment = os.environ | command["environment"] | {TOKEN: job["token"], FOLDER: str(folder)}
        with open(folder / f"command{number}.out", "wb") as out, open(folder / f"command{number}.err", "wb") as errors:
            started.append(
                subprocess.Popen(
                    command["arguments"], env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=errors,
                    start_new_session=True,
                )
            )  # fmt: skip
    return started


def _watch(commands: list[subprocess.Popen[bytes]], family: Family, until: float, asker: int) -> str:
    """Wait for the commands; return "ended", or why to stop waiting: "time", or "closed" if the process that asked is gone."""
    look_at, patience = 0.0, float("inf")
    while any(command.poll() is None for command in commands):
        now = time.monotonic()
        if now >= look_at:
            family.look(command.pid for command in commands if command.returncode is None)
            look_at = now + _FAMILY
        if any(command.returncode for command in commands):
            patience = min(patience, now + PATIENCE)
        if now >= until:
            return "time"
        if now >= patience:
            return "ended"
        readable, _, _ = select.select([0], [], [], _POLL)
        if (readable and not os.read(0, 1)) or os.getppid() != asker:
            return "closed"
    return "ended"


def _ask_where(family: Family, folder: Path) -> list[int]:
    """Have each rank write where it is: faulthandler answers SIGABRT, even in the middle of a collective.

    Return the ports of this machine to which the ranks are connected, and which a process outside this run has opened.
    """
    ranks = {json.loads(file.read_text().partition("\n")[0] or "{}").get("pid") for file in folder.glob("rank*.jsonl")}
    processes = family.alive()
    asked = [process for process in processes if process.pid in ranks]
    ours = {one.laddr.port for one in _connections(processes)}
    theirs = {one.raddr.port for one in _connections(asked) if one.raddr and one.raddr.ip in _LOCAL} - ours
    for process in asked:
        with contextlib.suppress(psutil.Error):
            process.send_signal(signal.SIGABRT)
    _wait(asked, _DUMP)
    return sorted(theirs)


def _connections(processes: Iterable[psutil.Process]) -> list[Any]:
    found: list[Any] = []
    for process in processes:
        with contextlib.suppress(psutil.Error, AttributeError):  # the method's name before psutil 6 was another one
            found += process.net_connections("tcp")
    return found


def main() -> None:
    """Do the job in the folder that the command line names, then leave FOLDER/ended.json."""
    folder = Path(sys.argv[1])
    job = json.loads((folder / "job.json").read_text())
    family = Family(job["token"])
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource  # not on every system

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a rank that is asked where it is must not dump its memory
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    ports: list[int] = []
    began, started = time.monotonic(), list[subprocess.Popen[bytes]]()
    try:
        started = _start(job, folder)
        why = _watch(started, family, began + job["seconds"], job["asker"])
        seconds = time.monotonic() - began
        if why == "time":
            ports = _ask_where(family, folder)
    finally:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # the end is no time to be disturbed
        codes = [command.poll() for command in started]
        family.end()
    ended = {"why": why, "codes": codes, "seconds": seconds, "foreign_ports": ports}
    (folder / "ended.tmp").write_text(json.dumps(ended))
    (folder / "ended.tmp").replace(folder / "ended.json")


if __name__ == "__main__":
    main()
