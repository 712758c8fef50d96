"""Run commands under a guardian process, so that nothing of theirs is left behind, however this process ends."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from amp_course.distributed.launching.guardian import Family
from amp_course.kit.errors import CourseError

_GUARDIAN = Path(__file__).with_name("guardian.py")
_GRACE = 20.0  # seconds that the guardian may take beyond the time it was given
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
    foreign_ports: of this machine, to which the ranks were connected when time was up, though no process of the run opened them
    """

    why: Literal["ended", "time"]
    codes: tuple[int | None, ...]
    seconds: float
    foreign_ports: tuple[int, ...] = ()


def run_guarded(commands: Sequence[Command], folder: Path, seconds: float) -> Ended:
    """Start the commands at once, wait until all have ended or `seconds` have passed, and end whatever is left of them.

    What they print is left in folder/command0.out, command0.err, command1.out, and so on. All of their processes are ended, too,
    when this function is interrupted and when this process ends, even by SIGKILL. Raises CourseError if they cannot be started.
    """
    token = uuid.uuid4().hex
    listed = [{"arguments": list(one.arguments), "environment": dict(one.environment)} for one in commands]
    job = {"commands": listed, "seconds": seconds, "token": token, "asker": os.getpid()}
    (folder / "job.json").write_text(json.dumps(job))
    with open(folder / "guardian.err", "wb") as errors:
        guardian = subprocess.Popen(
            [sys.executable, "-P", str(_GUARDIAN), str(folder)], stdin=subprocess.PIPE, stdout=errors, stderr=errors,
            start_new_session=True,
        )  # fmt: skip
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            guardian.wait(seconds + _GRACE)
    finally:
        assert guardian.stdin is not None
        guardian.stdin.close()  # which tells the guardian to end everything, if it has not yet
        with contextlib.suppress(subprocess.TimeoutExpired):
            guardian.wait(_GRACE)
        if guardian.returncode != 0:  # it was killed, or stopped
            guardian.kill()
            guardian.wait()
            Family(token).end()
    try:
        ended = json.loads((folder / "ended.json").read_text())
    except FileNotFoundError:
        told = (folder / "guardian.err").read_text(errors="replace").strip().splitlines()
        last = told[-1] if told else "the process that watches over it was killed"
        raise CourseError(f"the run could not be started, or was cut off: {last}. Start it again.") from None
    return Ended(ended["why"], tuple(ended["codes"]), ended["seconds"], tuple(ended["foreign_ports"]))


def local_environment() -> dict[str, str]:
    """Return what ranks on one machine need: one thread each, gloo on the loopback interface, and this package on the path.

    gloo would look up the machine's name otherwise, which fails on many a laptop. What is set already stays.
    """
    interface = next((name for _, name in socket.if_nameindex() if name in _LOOPBACK), None)
    wanted = {"OMP_NUM_THREADS": "1", **({"GLOO_SOCKET_IFNAME": interface} if interface else {})}
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(Path(__file__).resolve().parents[3])]))
    return {name: value for name, value in wanted.items() if name not in os.environ} | {"PYTHONPATH": path}


def free_port() -> int:
    """Return a TCP port that nobody uses at the moment."""
    with socket.socket() as one:
        one.bind(("", 0))
        return int(one.getsockname()[1])


def port_in_use(port: int) -> bool:
    """Say whether some process listens on a TCP port of this machine."""
    with socket.socket() as one:
        one.setsockopt(
            socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
        )  # as torch does: what a closed server left is no hindrance
        try:
            one.bind(("", port))
        except OSError:
            return True
    return False
