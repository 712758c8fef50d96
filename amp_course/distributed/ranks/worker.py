"""Be one rank: join the group, then run what the parent process sends, until it hangs up.

Started by `pool`: `python -m amp_course.distributed.ranks.worker RANK SIZE SOCKET PARENT FOLDER`.
The process ends when its parent does, however that ends: the socket closes, and while work is
running, a thread checks for the parent.
"""

from __future__ import annotations

import contextlib
import datetime
import io
import linecache
import os
import pickle
import shutil
import sys
import threading
import time
import warnings
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle
import torch
import torch.distributed as dist

from amp_course.checking import (
    Failed,
    TimeUp,
    Wrong,
    explain,
    load_lazy_modules,
    short,
    signature,
    where,
    within,
)
from amp_course.checking.sandbox import sandbox
from amp_course.checking.workplace import workplace
from amp_course.distributed.ranks.collective import (
    ENDED_GROUP,
    RETURNED,
    Collective,
    CollectiveWatch,
    Stopped,
)
from amp_course.distributed.ranks.report import Failure, Report

_PARENT = 0.5  # seconds between two checks for the parent
_JOINING = datetime.timedelta(seconds=60)
_PRINTED = 20_000  # characters that are sent back


class Rank:
    """This process: its rank, its group, and the connection to the parent."""

    def __init__(self, rank: int, size: int, connection: Connection, folder: str) -> None:
        self.rank, self.size, self.folder = rank, size, folder
        self.connection = connection
        self.groups = self.asked = 0
        self.stopped: Stopped | None = None

    def join(self) -> None:
        """Join a new group with the other ranks, and report that."""
        self.groups += 1
        store = dist.FileStore(f"{self.folder}/group{self.groups}", self.size)
        dist.init_process_group(
            "gloo", store=store, rank=self.rank, world_size=self.size, timeout=_JOINING
        )
        self.world = dist.group.WORLD
        self.connection.send("joined")

    def serve(self) -> None:
        """Run what comes, until the parent hangs up."""
        while True:
            try:
                message = self.connection.recv()
            except (EOFError, OSError):
                return
            if message == "join":
                with contextlib.suppress(Exception):
                    dist.destroy_process_group()
                self.join()
            elif not isinstance(message, str):  # else a late answer, about an abandoned collective
                seconds, work, sources = message
                for file, lines in sources.items():
                    linecache.cache[file] = (sum(map(len, lines)), None, lines, file)
                self.connection.send_bytes(_sendable(self.run(work, seconds)))

    def ask(self, collective: Collective) -> None:
        """Wait until all ranks call this collective. Raises Stopped if they never will."""
        self.asked += 1
        self.connection.send(collective)
        answer = self.connection.recv()
        if answer != "go":
            self.stopped = Stopped(self.rank, collective, answer, self.asked)
            raise self.stopped
        if collective.name == RETURNED:
            self.asked = 0

    def run(self, work: bytes, seconds: float) -> Report:
        """Run a pickled function with its arguments, and report."""
        printed = io.StringIO()
        value, failure, self.stopped, self.asked = None, None, None, 0
        before = set(dist.distributed_c10d._world.pg_map)
        with (
            contextlib.redirect_stdout(printed),
            workplace(),
            sandbox() as left,
            CollectiveWatch(self.ask),
        ):
            try:
                value = within(seconds, lambda: _call(work))
            except BaseException as error:
                failure = _failure(error, seconds)
        if failure is None and self.stopped is not None:  # the work caught Stopped and went on
            failure = _failure(self.stopped, seconds)
        leaks = [*left.leaks, *self._own_groups(before)]
        return Report(value, failure, printed.getvalue()[:_PRINTED], tuple(leaks))

    def _own_groups(self, before: set[Any]) -> list[str]:
        """End the groups that the work created; report if it ended ours."""
        if not dist.is_initialized() or dist.group.WORLD is not self.world:
            return [ENDED_GROUP]
        for group in set(dist.distributed_c10d._world.pg_map) - before:
            with contextlib.suppress(Exception):
                dist.destroy_process_group(group)
        return []


def _sendable(report: Report) -> bytes:
    """Pickle a report, with classes of the work by value. (`connection.send` would share the memory
    of tensors.)
    """
    try:
        return bytes(cloudpickle.dumps(report))
    except Exception as error:
        what = f"{type(error).__name__}: {short(str(error))}"
        text = f"your code returned something that cannot be sent back from its process ({what})"
        return pickle.dumps(replace(report, value=None, failure=Failure(text, text, "refused")))


def _call(work: bytes) -> Any:
    function, arguments = pickle.loads(work)
    return function(*arguments)


def _failure(error: BaseException, seconds: float) -> Failure:
    if isinstance(error, Stopped):
        if error.collective.name == RETURNED:
            text = f"your code returned, but the ranks did not get there together: {error}"
            return Failure(text, error.signature, "returned", error.case)
        text = f"your code would wait forever{where(error)}: {error}"
        return Failure(text, error.signature, "stopped", error.case)
    if isinstance(error, TimeUp):
        text = f"your code had not finished after {seconds:g} seconds and was stopped{where(error)}"
        return Failure(text, "time", "time")
    if isinstance(error, Wrong):
        return Failure(str(error), str(error), "refused")
    if isinstance(error, Failed) and error.__cause__ is not None:
        return replace(_failure(error.__cause__, seconds), case=str(error))
    return Failure(explain(error), signature(error))


def _watch_parent(parent: int, folder: str) -> None:
    while os.getppid() == parent:
        time.sleep(_PARENT)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def main() -> None:
    """Join the group and serve."""
    rank, size, socket, parent = map(int, sys.argv[1:5])
    folder = sys.argv[5]
    threading.Thread(target=_watch_parent, args=(parent, folder), daemon=True).start()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # nobody would read them
    load_lazy_modules()
    here = Rank(rank, size, Connection(socket), folder)
    here.join()
    here.serve()
    shutil.rmtree(folder, ignore_errors=True)  # if the parent was killed


if __name__ == "__main__":
    try:
        main()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)  # a normal exit would wait for the other ranks in gloo
