"""Run the commands that start ranks, and leave no process of theirs behind."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from amp_course.kit.children import Child, family

FOLDER = "AMP_COURSE_RUN_FOLDER"  # the variable with the folder where the ranks leave their records
PATIENCE = 10.0  # seconds for the other commands, once one of them has failed
_DUMP = 2.0  # seconds for a rank to write where it is
_LOOPBACK = ("lo", "lo0")

Command = tuple[Sequence[str], Mapping[str, str]]  # its words, and the variables to add


@dataclass(frozen=True)
class Ended:
    """How some commands ended.

    codes:   the exit code of each; None for one that had to be ended
    seconds: from their start until the last one ended, or time was up
    """

    time_up: bool
    codes: tuple[int | None, ...]
    seconds: float


def run_commands(commands: Sequence[Command], folder: Path, seconds: float) -> Ended:
    """Start the commands together, wait until all have ended or time is up, and end the others.

    They print to folder/command0.out, command0.err, command1.out, and so on. Their stdin ends when
    this process does, even by SIGKILL: `rank_main` then ends the ranks. Raises ChildError if they
    cannot be started.
    """
    began, children = time.monotonic(), list[Child]()
    try:
        for number, (words, variables) in enumerate(commands):
            environment = {**os.environ, **variables, FOLDER: str(folder)}
            base = folder / f"command{number}"
            with open(f"{base}.out", "wb") as out, open(f"{base}.err", "wb") as errors:
                streams = {"stdin": subprocess.PIPE, "stdout": out, "stderr": errors}
                children.append(Child(words, environment, **streams))
        time_up = not _wait(children, began + seconds)
        took = time.monotonic() - began
        if time_up:
            _dump_places(children, folder)
        return Ended(time_up, tuple(child.poll() for child in children), took)
    finally:
        for child in children:
            child.end()
            if child.stdin:
                child.stdin.close()


def _wait(children: Sequence[Child], until: float) -> bool:
    """Wait for the commands; return False if time is up."""
    patience = float("inf")
    while any(child.poll() is None for child in children):
        now = time.monotonic()
        if any(child.returncode for child in children):
            patience = min(patience, now + PATIENCE)
        if now >= until:
            return False
        if now >= patience:
            break
        time.sleep(0.05)
    return True


def _dump_places(children: Sequence[Child], folder: Path) -> None:
    """Have each rank write where it is: faulthandler handles SIGABRT, even in a collective."""
    pids = {file.read_text() for file in folder.glob("rank*.pid")}
    processes = [process for child in children for process in family(child.token)]
    ranks = [process for process in processes if str(process.pid) in pids]
    for process in ranks:
        with contextlib.suppress(psutil.Error):
            process.send_signal(signal.SIGABRT)
    psutil.wait_procs(ranks, _DUMP)


def local_environment() -> dict[str, str]:
    """Return the variables that ranks on one machine need: one thread, gloo on the loopback
    interface, this package on the path. What is set already stays.

    Without an interface, gloo looks up the machine's name, which fails on many laptops.
    """
    interface = next((name for _, name in socket.if_nameindex() if name in _LOOPBACK), None)
    wanted = {"OMP_NUM_THREADS": "1", **({"GLOO_SOCKET_IFNAME": interface} if interface else {})}
    package = str(Path(__file__).resolve().parents[3])
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), package]))
    return {k: v for k, v in wanted.items() if k not in os.environ} | {"PYTHONPATH": path}


def free_port() -> int:
    """Return a TCP port that nobody uses at the moment."""
    with socket.socket() as free:
        free.bind(("", 0))
        return int(free.getsockname()[1])


def rendezvous() -> list[str]:
    """Return the options by which the torchruns of several nodes, all on this machine, meet."""
    endpoint = f"localhost:{free_port()}"
    return f"--rdzv-backend c10d --rdzv-endpoint {endpoint} --local-addr localhost".split()
