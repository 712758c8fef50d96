"""Keep two ranks warm, send them work, watch their collectives, and end them with this process.

Starting them takes seconds, as each loads torch; a piece of work then takes milliseconds. A rank
that would hang is stopped as soon as its collective cannot complete any more: see `collective`. A
time limit stops everything else.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from amp_course.distributed.launching.running import local_environment
from amp_course.distributed.ranks.collective import RETURNED, Collective
from amp_course.distributed.ranks.report import Failure, Report
from amp_course.distributed.ranks.sending import packed, sources
from amp_course.kit.children import Child
from amp_course.kit.errors import CourseError

_RANKS = 2
_START_SECONDS = 60.0  # for all ranks to load torch and find each other
_SECONDS = 8.0  # for a piece of work
_GRACE = 4.0  # more seconds to report, after the time limit
_ALIKE = (
    "All ranks have to call the same collectives, in the same order, with tensors of the same "
    "shape and dtype"
)


class Ranks:
    """Two processes of one gloo group, started when first needed and again after one has ended.

    Example: Ranks().run(print, "hello")[1].printed → "hello\\n"
    """

    def __init__(self) -> None:
        self._processes: list[Child] = []
        self._connections: list[Connection] = []
        self._folder = ""
        self._ready = False  # all processes have started, and wait for work

    def run(self, function: Any, *arguments: Any, seconds: float = _SECONDS) -> list[Report]:
        """Call `function(*arguments)` on each rank, inside the group, with a time limit; return the
        reports, rank by rank.

        `torch.distributed` is initialised there. The function gets copies of its arguments. Raises
        Wrong for what cannot be sent, CourseError if the processes do not start.
        """
        work = packed(function, *arguments)
        try:
            self.start()
            self._ready = False
            for connection in self._connections:
                connection.send((seconds, work, sources((function, *arguments))))
            reports = _Watch(self._connections).reports(time.monotonic() + seconds + _GRACE)
            kinds = {report.failure.kind for report in reports if report.failure}
            if "exited" in kinds:
                reports = [self._with_exit(rank, report) for rank, report in enumerate(reports)]
            if kinds & {"exited", "hangs"}:
                self.close()
            elif kinds or any(report.leaks for report in reports):
                self._join_again()
            else:
                self._ready = True
        except BaseException:
            # above all Ctrl-C: a rank in the middle of its work cannot be used again
            self.close()
            raise
        return reports

    def start(self) -> None:
        """Start the processes if they are not running; return once they form a group."""
        if self._ready and all(process.poll() is None for process in self._processes):
            return
        self.close()
        self._folder = tempfile.mkdtemp(prefix="amp_course-ranks-")
        for rank in range(_RANKS):
            self._start_one(rank)
        self._expect_joined("started")

    def close(self) -> None:
        """End the processes. They start again when they are needed."""
        self._ready = False
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            process.end(0.0)
        shutil.rmtree(self._folder, ignore_errors=True)
        self._processes, self._connections = [], []

    def _start_one(self, rank: int) -> None:
        ours, theirs = socket.socketpair()
        self._connections.append(Connection(ours.detach()))
        numbers = map(str, (rank, _RANKS, theirs.fileno(), os.getpid()))
        command = [sys.executable, "-m", "amp_course.distributed.ranks.worker", *numbers]
        environment = os.environ | local_environment() | {"OMP_NUM_THREADS": "1"}
        path = [environment["PYTHONPATH"], *filter(None, sys.path)]
        environment["PYTHONPATH"] = os.pathsep.join(path)
        with theirs, open(self._errors(rank), "wb") as errors:
            streams = {"stdout": errors, "stderr": errors, "pass_fds": [theirs.fileno()]}
            self._processes.append(Child([*command, self._folder], environment, **streams))

    def _errors(self, rank: int) -> Path:
        return Path(self._folder, f"rank{rank}.err")

    def _expect_joined(self, what: str) -> None:
        until = time.monotonic() + _START_SECONDS
        for rank, connection in enumerate(self._connections):
            problem = f"could not be {what}"
            with contextlib.suppress(EOFError, OSError):
                if connection.poll(max(0.0, until - time.monotonic())):
                    connection.recv()
                    continue
                problem = f"had not {what} after {_START_SECONDS:g} seconds"
            lines = self._errors(rank).read_text(errors="replace").strip().splitlines()
            last = f" Its last words: {lines[-1]}" if lines else ""
            raise CourseError(f"rank {rank} {problem}.{last}")
        self._ready = True

    def _join_again(self) -> None:
        """Give the ranks a new group: leftovers in the old one must not meet the next work."""
        try:
            for connection in self._connections:
                connection.send("join")
            self._expect_joined("joined the others again")
        except (CourseError, OSError):
            self.close()

    def _with_exit(self, rank: int, report: Report) -> Report:
        if report.failure is None or report.failure.kind != "exited":
            return report
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._processes[rank].wait(2.0)
        code = self._processes[rank].returncode
        killed = code is not None and code < 0
        how = f"was killed by signal {-code}" if killed else f"ended with exit code {code}"
        message = f"the process was gone before your code returned: it {how}"
        return _failed(message, f"exited {code}", "exited")


class _Watch:
    """One piece of work: which ranks wait for which collective, and which have reported."""

    def __init__(self, connections: list[Connection]) -> None:
        self.connections = connections
        self.waiting: dict[int, Collective] = {}
        self.stopped: set[int] = set()  # ranks whose collective can never complete
        self.ended: dict[int, Report] = {}

    def reports(self, until: float) -> list[Report]:
        """Wait for both reports; a rank without one by then hangs."""
        while len(self.ended) < _RANKS:
            busy = [rank for rank in range(_RANKS) if rank not in self.ended]
            ready = wait([self.connections[rank] for rank in busy], until - time.monotonic())
            for rank in busy:
                if self.connections[rank] in ready:
                    self._receive(rank)
                elif not ready:
                    message = "your code had not finished when its time was up, and could not be "
                    self.ended[rank] = _failed(message + "stopped", "hangs", "hangs")
            self._decide()
        return [self.ended[rank] for rank in range(_RANKS)]

    def _receive(self, rank: int) -> None:
        try:
            message = self.connections[rank].recv()
        except (EOFError, OSError):
            message = _failed("", "exited", "exited")
        if isinstance(message, Report):
            failure = message.failure
            waited = self.waiting.pop(rank, None) is not None or rank in self.stopped
            # its time ran out while it waited for another rank
            if waited and failure is not None and failure.kind == "time":
                message = replace(message, failure=replace(failure, kind="stopped"))
            self.ended[rank] = message
        else:
            self.waiting[rank] = message

    def _decide(self) -> None:
        """Start the collectives that all their ranks call, and stop those that never can be."""
        for wanted in list(self.waiting.values()):
            if all(self.waiting.get(other) == wanted for other in wanted.group):
                for other in wanted.group:
                    del self.waiting[other]
                    self._answer(other, "go")
        for rank, why in {rank: self._obstacle(rank) for rank in self.waiting}.items():
            if why:
                self._answer(rank, why)
                del self.waiting[rank]
                self.stopped.add(rank)

    def _obstacle(self, rank: int) -> str:
        """Say why a rank waits in vain: the other has ended, or calls another collective. Return ""
        while it may still come.
        """
        other = 1 - rank
        if other in self.ended and (failure := self.ended[other].failure):
            how = "ended with an error" if failure.kind == "raised" else "ended"
            return f"rank {other} {how} without calling it"
        theirs = self.waiting.get(other)
        if other in self.ended or (theirs and theirs.name == RETURNED):
            return (
                f"rank {other} returned without calling it. All ranks of the group have to call "
                f"it, even one that has nothing to add"
            )
        return f"rank {other} calls {theirs} instead. {_ALIKE}" if theirs else ""

    def _answer(self, rank: int, message: str) -> None:
        with contextlib.suppress(OSError):  # it has just ended, which `_receive` will notice
            self.connections[rank].send(message)


def _failed(message: str, signature: str, kind: str) -> Report:
    return Report(failure=Failure(message, signature, kind))


@functools.cache
def warm_ranks() -> Ranks:
    """Return this process's ranks, which start with their first work and end with the process."""
    ranks = Ranks()
    atexit.register(ranks.close)
    return ranks
