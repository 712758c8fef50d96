"""Run the commands that start ranks, and leave no process of theirs behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import psutil

from amp_course.kit.children import Child, family

FOLDER = "AMP_COURSE_RUN_FOLDER"  # the variable with the folder where the ranks leave their records
PATIENCE = 10.0  # seconds for the other commands, once one of them has failed
_DUMP = 2.0  # seconds for a rank to write where it is
_LOCAL = ("127.0.0.1", "::1", "::ffff:127.0.0.1")
_LOOPBACK = ("lo", "lo0")


@dataclass(frozen=True)
class Command:
    """What to start, and the variables to add to its environment."""

    arguments: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Ended:
    """How some commands ended.

    why:     "ended" on their own, or "time" was up
    codes:   the exit code of each command; None for one that had to be ended
    seconds: from their start to the last one's end, or to the moment that time was up
    foreign_ports: of this machine, to which the ranks were connected when time was up, though no
             process of the run had opened them
    """

    why: Literal["ended", "time"]
    codes: tuple[int | None, ...]
    seconds: float
    foreign_ports: tuple[int, ...] = ()


def run_commands(commands: Sequence[Command], folder: Path, seconds: float) -> Ended:
    """Start the commands together, wait until all have ended or time is up, and end what is left.

    What they print is left in folder/command0.out, command0.err, command1.out, and so on. Their
    stdin ends when this process does, even by SIGKILL: `rank_main` then ends the ranks. Raises
    ChildError if they cannot be started.
    """
    began, children, ports = time.monotonic(), list[Child](), tuple[int, ...]()
    try:
        for number, command in enumerate(commands):
            variables = {**os.environ, **command.environment, FOLDER: str(folder)}
            base = folder / f"command{number}"
            with open(f"{base}.out", "wb") as out, open(f"{base}.err", "wb") as errors:
                streams = {"stdin": subprocess.PIPE, "stdout": out, "stderr": errors}
                children.append(Child(command.arguments, variables, **streams))
        why = _wait(children, began + seconds)
        took = time.monotonic() - began
        if why == "time":
            ports = _ask_where(children, folder)
        return Ended(why, tuple(child.poll() for child in children), took, ports)
    finally:
        for child in children:
            child.end()
            if child.stdin:
                child.stdin.close()


def _wait(children: Sequence[Child], until: float) -> Literal["ended", "time"]:
    patience = float("inf")
    while any(child.poll() is None for child in children):
        now = time.monotonic()
        if any(child.returncode for child in children):
            patience = min(patience, now + PATIENCE)
        if now >= until:
            return "time"
        if now >= patience:
            break
        time.sleep(0.05)
    return "ended"


def _ask_where(children: Sequence[Child], folder: Path) -> tuple[int, ...]:
    """Have each rank write where it is: faulthandler answers SIGABRT, even in a collective.

    Return the ports of this machine to which the ranks are connected, and which a process outside
    this run has opened.
    """
    processes = [process for child in children for process in family(child.token)]
    started = [file.read_text().partition("\n")[0] for file in folder.glob("rank*.jsonl")]
    ranks = {json.loads(line or "{}").get("pid") for line in started}
    asked = [process for process in processes if process.pid in ranks]
    ours = {one.laddr.port for one in _connections(processes)}
    theirs = {one.raddr.port for one in _connections(asked) if one.raddr and one.raddr.ip in _LOCAL}
    for process in asked:
        with contextlib.suppress(psutil.Error):
            process.send_signal(signal.SIGABRT)
    psutil.wait_procs(asked, _DUMP)
    return tuple(sorted(theirs - ours))


def _connections(processes: Iterable[psutil.Process]) -> list[Any]:
    found: list[Any] = []
    for process in processes:
        # it has another name before psutil 6
        with contextlib.suppress(psutil.Error, AttributeError):
            found += process.net_connections("tcp")
    return found


def local_environment() -> dict[str, str]:
    """Return what ranks on one machine need: one thread each, gloo on the loopback interface.

    This package is on the path, too. gloo would look up the machine's name otherwise, which fails
    on many a laptop. What is set already stays.
    """
    interface = next((name for _, name in socket.if_nameindex() if name in _LOOPBACK), None)
    wanted = {"OMP_NUM_THREADS": "1", **({"GLOO_SOCKET_IFNAME": interface} if interface else {})}
    package = str(Path(__file__).resolve().parents[3])
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), package]))
    return {k: v for k, v in wanted.items() if k not in os.environ} | {"PYTHONPATH": path}


def free_port() -> int:
    """Return a TCP port that nobody uses at the moment."""
    with socket.socket() as one:
        one.bind(("", 0))
        return int(one.getsockname()[1])


def port_in_use(port: int) -> bool:
    """Return True if some process listens on a TCP port of this machine."""
    with socket.socket() as one:
        # As torch does: what a closed server left is no hindrance.
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("", port))
        except OSError:
            return True
    return False
