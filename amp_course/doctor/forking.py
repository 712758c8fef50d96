"""Fork processes that have imported torch already: that saves each of many scripts the seconds that the import takes.

Run as a file, these are the servers: `python forking.py FD ...`, one for each connection. Each forks itself once per request.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    sys.path.pop(0)  # this file's folder

import atexit
import contextlib
import multiprocessing
import os
import signal
import subprocess
import threading
import traceback
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from amp_course.kit.errors import CourseError


@contextlib.contextmanager
def fork_servers(count: int = 1) -> Iterator[list[ForkServer]]:
    """Start `count` servers that import torch once between them, and end them afterwards. Linux only."""
    with contextlib.ExitStack() as stack:
        pipes = [multiprocessing.Pipe() for _ in range(count)]
        for ours, _ in pipes:
            stack.enter_context(ours)
        theirs = [connection.fileno() for _, connection in pipes]
        process = subprocess.Popen(
            [sys.executable, __file__, *map(str, theirs)],
            pass_fds=theirs,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        for _, connection in pipes:
            connection.close()
        try:
            yield [ForkServer(ours) for ours, _ in pipes]
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # the servers; each script has a group of its own
            process.wait()


class ForkServer:
    """A process that is forked for each script, one at a time."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def start(self, arguments: Sequence[str], output: Path, environment: dict[str, str]) -> Fork:
        """Run `inside.py` with these arguments in a fork, in the current folder, with its output in a file."""
        output.touch()
        try:
            self.connection.send((list(arguments), str(output), environment, os.getcwd()))
            return Fork(self.connection)
        except (EOFError, OSError) as error:
            raise CourseError(
                "The process that scripts are forked from is gone: was it out of memory? Run it again."
            ) from error


class Fork:
    """A fork of a server, with the methods of a Popen."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.pid: int = connection.recv()
        self.code: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code as soon as there is one. Raises TimeoutExpired after `timeout` seconds."""
        if self.code is None and not self._connection.poll(timeout):
            raise subprocess.TimeoutExpired("the script", timeout or 0.0)
        if self.code is None:
            self.code = self._connection.recv()
        return self.code

    def poll(self) -> int | None:
        """Return the exit code if there is one."""
        return self.wait(0) if self.code is not None or self._connection.poll() else None


def own_connection(fds: Sequence[int]) -> Connection:
    """Fork a server for every connection but the last, which stays here. Each keeps its own alone, so it sees that one's end."""
    own = fds[-1]
    for fd in fds[:-1]:
        if os.fork() == 0:
            own = fd
            break
    for fd in set(fds) - {own}:
        os.close(fd)
    return Connection(own)


def next_request(connection: Connection) -> tuple[Any, ...] | None:
    """Wait for requests. Returns each in a fork of its own, and None in the server once nobody is left to ask."""
    while True:
        try:
            request = connection.recv()
        except EOFError:
            return None
        pid = os.fork()
        if pid == 0:
            connection.close()
            return tuple(request)
        connection.send(pid)
        connection.send(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def main(*fds: int) -> None:
    """Be the servers, then each of their forks."""
    import torch._dynamo

    from amp_course.doctor import inside

    request = next_request(own_connection(fds))
    if request is None:
        return
    arguments, output, environment, folder = request
    os.setsid()
    for path, mode, numbers in ((os.devnull, os.O_RDONLY, (0,)), (output, os.O_WRONLY, (1, 2))):
        opened = os.open(path, mode)
        for number in numbers:
            os.dup2(opened, number)
        os.close(opened)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    if environment.get("OMP_NUM_THREADS", "").isdigit():  # torch read it when it was imported
        torch.set_num_threads(int(environment["OMP_NUM_THREADS"]))
    code: int | None = 0
    try:
        inside.main(arguments)
    except SystemExit as ended:
        code = ended.code if ended.code is None or isinstance(ended.code, int) else 1
        if code is not ended.code:
            print(ended.code, file=sys.stderr)
    except BaseException:
        code = 1
        traceback.print_exc()
    threading._shutdown()  # type: ignore[attr-defined]  # what an interpreter does at its end, but for a second of tidying up
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
