"""The grader's side of a kernel: start it where it can do no harm, run cells, ask for verdicts."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from queue import Empty
from typing import Any

import psutil
from nbclient import NotebookClient
from nbclient.exceptions import DeadKernelError
from nbformat import NotebookNode

from amp_course.classroom import bubblewrap
from amp_course.classroom.assignment import Task
from amp_course.classroom.job import Job
from amp_course.classroom.judging import PATIENCE
from amp_course.classroom.kernel import SETTINGS
from amp_course.classroom.verdict import REPLY, REQUEST, Seal, Verdict
from amp_course.kit.paths import course_root

_NO_REPLY = {
    "ename": "TimeUp",
    "evalue": "",
    "traceback": ["this cell did not end in time and was stopped"],
}
_KIND_OF_CPU = ("ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY")  # set to imitate an older machine
_OUTPUTS = ("stream", "display_data", "update_display_data", "execute_result", "error")
_PATIENCE = 5.0  # seconds in which an interrupted cell must end


class Kernel(NotebookClient):
    """A kernel for one submission, as a context that leaves nothing running."""

    def __init__(self, job: Job, scratch: Path) -> None:
        super().__init__(
            job.book,
            timeout=job.limits.cell_seconds,
            allow_errors=True,
            interrupt_on_timeout=True,
            error_on_timeout=_NO_REPLY,
            store_widget_state=False,
            coalesce_streams=True,
            startup_timeout=120,
            iopub_timeout=10,
            raise_on_iopub_timeout=False,
        )
        self._limits, self._printed = job.limits, 0
        self.excess = ""  # why it was stopped, in words
        self._scratch, key = scratch, secrets.token_bytes(32)
        self._seal = Seal(key)
        settings = {
            "key": key.hex(),
            "chapter": job.chapter,
            "handed_in": str(job.handed_in),
            "forbidden": [f"{job.class_root}{os.sep}"],
            "file_bytes": job.limits.disk_bytes,
            "memory_bytes": job.limits.memory_bytes,
        }
        place = scratch / "settings.json"
        place.write_text(json.dumps(settings), encoding="utf-8")
        place.chmod(0o600)
        self.km = self._process = self._manager(_argv(job, scratch, place))

    def _manager(self, argv: list[str]) -> Any:
        from jupyter_client import AsyncKernelManager
        from jupyter_client.kernelspec import KernelSpec

        # Messages go through files, for without a network there are no ports.
        manager = AsyncKernelManager(
            transport="ipc",
            ip=str(self._scratch / "k"),
            connection_file=str(self._scratch / "kernel.json"),
            kernel_name="amp_course",
        )
        manager._kernel_spec = KernelSpec(
            argv=argv, display_name="amp_course", language="python", interrupt_mode="message"
        )
        return manager

    async def __aenter__(self) -> Kernel:
        home = self._scratch / "home"
        home.mkdir()
        # of the kernel itself; a cell's prints are messages
        with (self._scratch / "log").open("wb") as log:
            await self._process.start_kernel(
                cwd=str(home),
                env=_environment(self._scratch / "settings.json"),
                stdout=log,
                stderr=log,
            )
        await self.async_start_new_kernel_client()
        self._watch = asyncio.create_task(self._watch_processes())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._watch.cancel()
        _kill_children(self._process)
        await self._process.shutdown_kernel(now=True)
        if self.kc is not None:
            self.kc.stop_channels()
            self.kc = None

    async def _watch_processes(self) -> None:
        """End the kernel once it has too many processes."""
        most = self._limits.processes
        while len(_children(self._process)) <= most:
            await asyncio.sleep(0.5)
        self.excess = f"it had more than {most} processes at once"
        _kill_children(self._process)
        await self._process.signal_kernel(signal.SIGKILL)

    async def run_cell(self, cell: NotebookNode, number: int) -> None:
        """Run a cell and store its outputs. Raises DeadKernelError if the kernel ends or does not
        react.
        """
        self._printed = 0
        began = time.monotonic()
        await self.async_execute_cell(cell, number)
        if time.monotonic() - began > self._limits.cell_seconds:
            await self._ask("kernel_info_request", {}, "kernel_info_reply", _PATIENCE)

    async def check(self, task: Task) -> Verdict:
        """Ask for the verdict on an answer. Raises DeadKernelError as `run_cell` does."""
        question = secrets.token_hex(16)
        content = {"exercise": task.exercise.id, "answer": task.answer, "question": question}
        reply = await self._ask(REQUEST, content, REPLY, 2 * task.exercise.seconds + 2 * PATIENCE)
        if not reply:
            why = "the process that checks answers had ended"
            return Verdict(task.exercise.id, "no verdict", why)
        verdict = self._seal.open(reply, question)
        if verdict is None or verdict.exercise != task.exercise.id:
            why, replaced = "the reply was not that of the check", ("the reply to the check",)
            return Verdict(task.exercise.id, "no verdict", why, replaced=replaced)
        return verdict

    async def _ask(
        self, kind: str, content: dict[str, Any], reply_kind: str, seconds: float
    ) -> dict[str, Any]:
        assert self.kc is not None
        message = self.kc.session.msg(kind, content)
        self.kc.shell_channel.send(message)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            try:
                reply = await self.kc.shell_channel.get_msg(timeout=0.5)
            except Empty:
                if not await self._process.is_alive():
                    break
                continue
            if (
                reply["parent_header"].get("msg_id") == message["header"]["msg_id"]
                and reply["msg_type"] == reply_kind
            ):
                return dict(reply["content"])
        raise DeadKernelError("no answer")

    def process_message(
        self, msg: dict[str, Any], cell: NotebookNode, cell_index: int
    ) -> NotebookNode | None:
        """Store an output unless the cell has printed more than the limit."""
        if msg["msg_type"] in _OUTPUTS:
            self._printed += len(json.dumps(msg["content"], default=str))
            if self._printed > self._limits.output_bytes:
                return None
        return super().process_message(msg, cell, cell_index)


def _argv(job: Job, scratch: Path, place: Path) -> list[str]:
    # -P: no submitted module is imported in place of one of Python's or of the course's.
    program = [sys.executable, "-P", "-m", "amp_course.classroom.kernel"]
    program += ["-f", "{connection_file}", "--HistoryManager.enabled=False"]
    if not job.sandboxed:
        return program
    environment = _environment(place) | {"HOME": bubblewrap.HOME}
    return bubblewrap.command(
        program,
        shared=scratch,
        readable=job.handed_in,
        hidden=[job.class_root],
        environment=environment,
        disk_bytes=job.limits.disk_bytes,
    )


def _environment(place: Path) -> dict[str, str]:
    """Return a submission's whole environment."""
    home = str(place.parent / "home")
    imitated = {name: os.environ[name] for name in _KIND_OF_CPU if name in os.environ}
    return imitated | {
        SETTINGS: str(place),
        "PATH": os.pathsep.join(
            [str(Path(sys.executable).parent), "/usr/local/bin", "/usr/bin", "/bin"]
        ),
        "LANG": "C.UTF-8",
        "HOME": home,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(course_root()),
        "AMP_COURSE_ROOT": str(course_root()),
        "MPLBACKEND": "agg",
        "IPYTHONDIR": f"{home}/.ipython",
        "TQDM_DISABLE": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Make a folder that is deleted afterwards, however deeply nested its content is."""
    folder = Path(tempfile.mkdtemp(prefix="amp-grading-"))
    try:
        yield folder
    finally:
        # not shutil.rmtree, which calls itself for each level
        subprocess.run(["rm", "-rf", "--", str(folder)], check=False, capture_output=True)


def _children(manager: Any) -> list[psutil.Process]:
    """Return all processes below a kernel, or below its bubblewrap."""
    try:
        return list(psutil.Process(manager.provisioner.process.pid).children(recursive=True))
    except (psutil.Error, AttributeError):  # it has ended
        return []


def _kill_children(manager: Any) -> None:
    """Kill what the submission has started; in bubblewrap it ends with its first process."""
    for process in _children(manager):
        with contextlib.suppress(psutil.Error):
            process.kill()
