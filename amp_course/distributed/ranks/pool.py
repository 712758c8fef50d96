"""Keep some ranks warm, send them work, watch over their collectives, and end them with this
process.

Starting two takes seconds, for each loads torch; a piece of work then takes milliseconds. A rank
that hangs is told so as soon as nobody can help it any more, and not after a time limit: see
`collective`. What cannot be stopped in that way has one.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import IO, Any

from amp_course.distributed.ranks.collective import Collective
from amp_course.distributed.ranks.report import Failure, Report
from amp_course.distributed.ranks.sending import packed, sources
from amp_course.kit.children import Child, ChildError, last_words
from amp_course.kit.errors import CourseError

START_SECONDS = 60.0  # for all ranks to load torch and find each other
SECONDS = 8.0  # for a piece of work
_GRACE = 4.0  # seconds that a rank has for reporting, once its work was to have ended
_ALIKE = (
    "All ranks have to call the same collectives, in the same order, with tensors of the same "
    "shape and dtype"
)
_LOOPBACK = ("lo", "lo0")  # so that gloo asks neither the machine's name nor its network


class RanksFailed(CourseError):
    """The ranks could not be started; the message says why."""


class Ranks:
    """Some processes of one gloo group, started when first needed and again after one of them has
    died.

    Example: Ranks(2).run(print, "hello")[1].printed → "hello\\n"
    """

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ValueError(f"size is {size}: there must be at least one rank.")
        self.size = size
        self._processes: list[Child] = []
        self._connections: list[Connection] = []
        self._errors: list[IO[bytes]] = []
        self._folder = ""
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._ready = False  # every process has started, and waits for work

    def run(self, function: Any, *arguments: Any, seconds: float = SECONDS) -> list[Report]:
        """Call `function(*arguments)` on each rank, inside the group; return the reports, rank by
        rank.

        `torch.distributed` is initialised there. Nothing that the function does to its arguments is
        seen here. It has so many seconds. Raises Wrong for what cannot be sent, RanksFailed if the
        processes do not start.
        """
        work = packed(function, *arguments)
        with self._lock:
            try:
                self.start()
                self._ready = False
                for connection in self._connections:
                    connection.send((seconds, work, sources((function, *arguments))))
                reports = _Watch(self._connections, self.size).reports(
                    time.monotonic() + seconds + _GRACE
                )
                reports = [self._with_exit(rank, report) for rank, report in enumerate(reports)]
                if any(
                    report.failure and report.failure.kind in ("died", "hangs")
                    for report in reports
                ):
                    self.close()
                elif any(report.failure or report.leaks for report in reports):
                    self._join_again()
                else:
                    self._ready = True
            except BaseException:
                # Ctrl-C above all: a rank in the middle of something is of no further use
                self.close()
                raise
        return reports

    def start(self) -> None:
        """Start the processes if they are not running; return once they form a group."""
        if self._owner != os.getpid():  # in a fork, the processes are the parent's
            self._processes, self._connections, self._errors, self._ready = [], [], [], False
            self._owner = os.getpid()
        if self._ready and all(process.poll() is None for process in self._processes):
            return
        self.close()
        self._folder = tempfile.mkdtemp(prefix="amp_course-ranks-")
        for rank in range(self.size):
            self._start_one(rank)
        self._expect_joined("started")
        self._ready = True

    def close(self) -> None:
        """End the processes. They start again when they are needed."""
        if self._owner != os.getpid():
            return
        self._ready = False
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            process.end(0.0)
        for file in self._errors:
            file.close()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._processes, self._connections, self._errors, self._folder = [], [], [], ""

    @property
    def processes(self) -> tuple[int, ...]:
        """The numbers of the processes that run now."""
        return tuple(process.pid for process in self._processes if process.poll() is None)

    def _start_one(self, rank: int) -> None:
        ours, theirs = socket.socketpair()
        errors = tempfile.TemporaryFile()  # noqa: SIM115  # `close` closes it
        command = [sys.executable, "-m", "amp_course.distributed.ranks.worker"]
        command += [
            str(rank),
            str(self.size),
            str(theirs.fileno()),
            str(os.getpid()),
            f"{self._folder}/group",
        ]
        path = os.pathsep.join([str(Path(__file__).resolve().parents[3]), *filter(None, sys.path)])
        environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        interface = next((name for _, name in socket.if_nameindex() if name in _LOOPBACK), None)
        if interface:
            environment["GLOO_SOCKET_IFNAME"] = interface
        try:
            streams = {"stdout": errors, "stderr": errors, "pass_fds": [theirs.fileno()]}
            self._processes.append(Child(command, environment, **streams))
        except ChildError as error:
            errors.close()
            ours.close()
            raise RanksFailed(f"rank {rank}: {error}.") from error
        finally:
            theirs.close()
        self._connections.append(Connection(ours.detach()))
        self._errors.append(errors)

    def _expect_joined(self, what: str) -> None:
        until = time.monotonic() + START_SECONDS
        for rank, connection in enumerate(self._connections):
            while True:
                if not connection.poll(max(0.0, until - time.monotonic())):
                    raise RanksFailed(
                        f"rank {rank} had not {what} after {START_SECONDS:g} "
                        f"seconds.{self._last_error(rank)}"
                    )
                try:
                    if pickle.loads(connection.recv_bytes()) == "joined":
                        break
                except (EOFError, OSError):
                    raise RanksFailed(
                        f"rank {rank} could not be {what}.{self._last_error(rank)}"
                    ) from None

    def _join_again(self) -> None:
        """Give the ranks a new group: what is left in the old one must not meet the next piece of
        work.
        """
        try:
            for connection in self._connections:
                connection.send("join")
            self._expect_joined("joined the others again")
            self._ready = True
        except (RanksFailed, OSError):
            self.close()

    def _with_exit(self, rank: int, report: Report) -> Report:
        if report.failure is None or report.failure.kind != "died":
            return report
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._processes[rank].wait(2.0)
        code = self._processes[rank].returncode
        how = (
            f"it was killed by signal {-code}"
            if code and code < 0
            else f"it ended with exit code {code}"
        )
        return Report(
            None,
            Failure(
                f"the process was gone before your code returned: {how}", f"died {code}", "died"
            ),
        )

    def _last_error(self, rank: int) -> str:
        lines = last_words(self._errors[rank])
        return f" Its last words: {lines[-1]}" if lines else ""


class _Watch:
    """One piece of work: who runs, who waits for which collective, who has reported."""

    def __init__(self, connections: list[Connection], size: int) -> None:
        self.connections, self.size = connections, size
        self.waiting: dict[int, Collective] = {}
        self.stopped: set[int] = set()  # ranks that were told not to wait any longer
        self.calls: Counter[int] = Counter()  # rank → collectives asked for
        self.sent: Counter[tuple[int, int]] = Counter()  # (from, to) → sends without a recv
        self.ended: dict[int, Report] = {}

    def reports(self, until: float) -> list[Report]:
        """Wait for all reports; a rank that has none by then is told to hang."""
        while len(self.ended) < self.size:
            busy = [one for rank, one in enumerate(self.connections) if rank not in self.ended]
            ready = wait(busy, max(0.0, until - time.monotonic()))
            if not ready:
                failure = Failure(
                    "your code had not finished when its time was up, and could not be stopped",
                    "hangs",
                    "hangs",
                )
                self.ended |= {
                    rank: Report(None, failure)
                    for rank in range(self.size)
                    if rank not in self.ended
                }
            for connection in ready:
                self._hear(self.connections.index(connection))  # type: ignore[arg-type]
            self._decide()
        return [self.ended[rank] for rank in range(self.size)]

    def _hear(self, rank: int) -> None:
        try:
            message = pickle.loads(self.connections[rank].recv_bytes())
        except (EOFError, OSError):
            self.waiting.pop(rank, None)
            self.ended[rank] = Report(None, Failure("", "died", "died"))
            return
        if isinstance(message, Report):
            failure = message.failure
            waited = self.waiting.pop(rank, None) is not None or rank in self.stopped
            # it lost its time to another rank
            if waited and failure is not None and failure.kind == "time":
                message = replace(message, failure=replace(failure, kind="stopped"))
            self.ended[rank] = message
        elif isinstance(message, Collective) and message.kind == "send":
            self.sent[rank, message.root] += 1
        elif isinstance(message, Collective):
            self.calls[rank] += message.kind == "collective" or message.kind == "receive"
            self.waiting[rank] = message

    def _decide(self) -> None:
        """Let the collectives run that all their ranks call, and stop what cannot go on."""
        for rank, wanted in list(self.waiting.items()):
            if self.waiting.get(rank) is wanted and self._complete(rank, wanted):
                for other in [rank] if wanted.kind == "receive" else wanted.group:
                    del self.waiting[other]
                    self._tell(other, "go")
        stuck = {rank: self._missing(rank) for rank in self.waiting}
        everybody = len(self.waiting) + len(self.ended) == self.size
        for rank, missing in stuck.items():
            if missing or everybody:
                mine = f"rank {rank}'s collective number {self.calls[rank]}, {self.waiting[rank]}"
                self._tell(rank, f"{mine}, can never complete: {missing or self._others(rank)}")
                del self.waiting[rank]
                self.stopped.add(rank)

    def _complete(self, rank: int, wanted: Collective) -> bool:
        if wanted.kind == "receive":
            sender = (
                wanted.root
                if wanted.root >= 0
                else next((s for (s, to), n in self.sent.items() if to == rank and n), -1)
            )
            if self.sent[sender, rank] < 1:
                return False
            self.sent[sender, rank] -= 1
            return True
        return all(self.waiting.get(other) == wanted for other in wanted.group)

    def _missing(self, rank: int) -> str:
        """Say which rank will never come: it has ended,
        or calls another collective of the same group; "" if all still may.
        """
        wanted = self.waiting[rank]
        needed = (
            wanted.group if wanted.kind != "receive" else [wanted.root] if wanted.root >= 0 else []
        )
        for other in needed:
            if other in self.ended and other != rank:
                failure = self.ended[other].failure
                if failure is None:
                    return _left(other)
                how = "ended with an error" if failure.kind == "raised" else "ended"
                return f"rank {other} {how} without calling it"
        for other in needed:
            theirs = self.waiting.get(other)
            if theirs is not None and theirs.kind == "returned" and wanted.kind != "returned":
                return _left(other)
            if theirs is not None and theirs != wanted and theirs.group == wanted.group:
                return f"{self._theirs(other)}. {_ALIKE}"
        return ""

    def _others(self, rank: int) -> str:
        others = "; ".join(self._theirs(other) for other in sorted(self.waiting) if other != rank)
        return f"{others}. {_ALIKE}" if others else "no rank sends it"

    def _theirs(self, rank: int) -> str:
        """Say what another rank waits in. Example: → "rank 1's number 2 is `barrier`" """
        return f"rank {rank}'s number {self.calls[rank]} is {self.waiting[rank]}"

    def _tell(self, rank: int, message: str) -> None:
        with contextlib.suppress(OSError):  # it has just died, and will be heard of
            self.connections[rank].send(message)


def _left(rank: int) -> str:
    return (
        f"rank {rank} returned without calling it. All ranks of the group have to call it, even "
        f"one that has nothing to add"
    )


_POOLS: dict[int, Ranks] = {}


def warm_ranks(size: int = 2) -> Ranks:
    """Return this process's ranks, started when they first get work; they end with it."""
    if size not in _POOLS:
        _POOLS[size] = Ranks(size)
        atexit.register(_POOLS[size].close)
    return _POOLS[size]
