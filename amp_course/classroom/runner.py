"""Run one submission in a kernel of its own, cell by cell, and ask that kernel for a verdict where points are to be had.

A cell that never ends is stopped, a cell that ends the kernel is left out and the rest is run again in a new one: one bad answer
does not cost a student the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import Empty
from typing import Any, cast

from nbclient import NotebookClient
from nbclient.exceptions import DeadKernelError
from nbformat import NotebookNode
from nbformat.v4 import new_output

from amp_course.checking import Outcome
from amp_course.checking.outcome import State
from amp_course.classroom import bubblewrap
from amp_course.classroom.assignment import TEST, Task
from amp_course.classroom.judging import PATIENCE
from amp_course.classroom.kernel import SETTINGS
from amp_course.classroom.verdict import REPLY, REQUEST, Seal, Verdict
from amp_course.kit.paths import course_root

_NO_REPLY = {"ename": "TimeUp", "evalue": "", "traceback": ["this cell did not end in time and was stopped"]}
_STARTS = 4  # kernels for one submission, at most
_PREFIX = "amp-grading-"
_PATIENCE = 5.0  # seconds that an interrupted cell has for leaving


@dataclass(frozen=True)
class Limits:
    """What one submission may use; `cell_seconds` is for each of its own cells, `seconds` for all of it."""

    cell_seconds: float = 60.0
    seconds: float = 300.0
    disk_bytes: int = 256 * 2**20
    memory_bytes: int = 6 * 2**30
    output_bytes: int = 2**20  # of one cell


@dataclass(frozen=True)
class Job:
    """What is to be run, and how.

    book:       a prepared submission; its cells are given their outputs
    chapter:    the word of the chapter
    handed_in:  the folder that was submitted, whose other files the notebook may need
    class_root: the folder that a submission has no business in
    """

    book: NotebookNode
    chapter: str
    tasks: Sequence[Task]
    handed_in: Path
    class_root: Path
    sandboxed: bool
    limits: Limits


@dataclass
class Run:
    """What came of a submission: its notebook with outputs, the verdicts by exercise's id, and what else happened."""

    book: NotebookNode
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    seconds: float = 0.0


async def run(job: Job) -> Run:
    """Run a prepared submission; whatever it does, this returns, within the limits."""
    began, done, limits = time.monotonic(), Run(job.book), job.limits
    left_out: set[int] = set()
    for _ in range(_STARTS):
        remaining = limits.seconds - (time.monotonic() - began)
        try:
            async with asyncio.timeout(max(remaining, 0.0)):
                culprit = await _once(job, done, left_out)
        except TimeoutError:
            done.findings.append(
                f"it was stopped after {limits.seconds:.0f} seconds in all; what came later is not graded"
            )
            break
        if culprit is None:
            break
        left_out.add(culprit)
    else:
        done.findings.append(f"it ended {_STARTS} kernels; what came after that is not graded")
    done.seconds = time.monotonic() - began
    return done


async def _once(job: Job, done: Run, left_out: set[int]) -> int | None:
    """Run the notebook in a new kernel. Returns the number of the cell that ended the kernel, or None if none did."""
    by_cell = {TEST + task.exercise.name: task for task in job.tasks}
    with _scratch() as scratch:
        async with _Kernel(job, scratch) as kernel:
            for number, cell in enumerate(job.book.cells):
                if cell.cell_type != "code":
                    continue
                task = by_cell.get(cell.metadata.get("nbgrader", {}).get("grade_id", ""))
                if number in left_out or (task and task.exercise.id in done.verdicts):
                    continue
                try:
                    if task is None:
                        await kernel.run_cell(cell, number)
                    else:
                        verdict = _with_error(await kernel.check(task), task, job.book)
                        done.verdicts[task.exercise.id] = verdict
                        _show(cell, verdict)
                except DeadKernelError:
                    current = asyncio.current_task()
                    if (
                        current is not None and current.cancelling()
                    ):  # nbclient takes an interrupted run for a dead kernel
                        raise asyncio.CancelledError from None
                    _end(done, cell, number, task)
                    if kernel.too_much:
                        done.findings.append(
                            f"it wrote more than {2 * job.limits.disk_bytes / 2**20:.0f} MB and was stopped"
                        )
                    return number
    return None


def _end(done: Run, cell: NotebookNode, number: int, task: Task | None) -> None:
    if task is not None:
        told = "the process ended while this answer was checked"
        done.verdicts[task.exercise.id] = verdict = Verdict(task.exercise.id, "no verdict", told)
        _show(cell, verdict)
    else:
        name = cell.metadata.get("nbgrader", {}).get("grade_id") or f"number {number + 1}"
        cell.outputs = [
            new_output("error", ename="DeadKernel", evalue="", traceback=["this cell ended the kernel, or held it up"])
        ]
        done.findings.append(
            f"the cell {name} ended its kernel or could not be stopped; the others were run without it"
        )


def _with_error(verdict: Verdict, task: Task, book: NotebookNode) -> Verdict:
    """Say so if an answer is missing because its cell raised: that is no exercise left out."""
    raised = [
        output.ename
        for cell in book.cells
        if cell.metadata.get("nbgrader", {}).get("grade_id") == task.exercise.name
        for output in cell.get("outputs", ())
        if output.output_type == "error"
    ]
    if verdict.state != "not attempted" or not raised:
        return verdict
    told = f"the answer's cell raised {raised[-1]}, so there was nothing to check"
    return replace(verdict, state="not yet", message=told)


def _show(cell: NotebookNode, verdict: Verdict) -> None:
    """Give a cell with points the outputs that it would have had: the check's box, and an error where there are no points."""
    state = verdict.state if verdict.state in ("correct", "not attempted") else "not yet"
    outcome = Outcome(cast(State, state), verdict.message, verdict.notes, verdict.mistake)
    cell.outputs = [new_output("display_data", data={"text/html": outcome._html(), "text/plain": str(outcome)})]
    if verdict.state != "correct" or verdict.replaced:
        told = "no points yet: the message above says why"
        error = new_output("error", ename="AssertionError", evalue=told, traceback=[f"AssertionError: {told}"])
        cell.outputs.append(error)


class _Kernel(NotebookClient):
    """A kernel for one submission, as a context: nothing of it is left afterwards."""

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
        self._limits, self._printed, self.too_much = job.limits, 0, False
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
        self.km = self._process = self._manager(_argv(job, scratch, place), place)

    def _manager(self, argv: list[str], place: Path) -> Any:
        from jupyter_client import AsyncKernelManager
        from jupyter_client.kernelspec import KernelSpec

        # Messages go through files: without a network there are no ports.
        manager = AsyncKernelManager(
            transport="ipc",
            ip=str(self._scratch / "k"),
            connection_file=str(self._scratch / "kernel.json"),
            kernel_name="amp_course",
        )
        manager._kernel_spec = KernelSpec(
            argv=argv, display_name="amp_course", language="python", interrupt_mode="message", env=_environment(place)
        )
        return manager

    async def __aenter__(self) -> _Kernel:
        home = self._scratch / "home"
        home.mkdir()
        with (self._scratch / "log").open("wb") as log:  # of the kernel itself; a cell's prints are messages
            await self._process.start_kernel(
                cwd=str(home), env=_environment(self._scratch / "settings.json"), stdout=log, stderr=log
            )
        await self.async_start_new_kernel_client()
        self._watch = asyncio.create_task(self._watch_disk())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._watch.cancel()
        _kill_children(self._process)
        await self._process.shutdown_kernel(now=True)
        if self.kc is not None:
            self.kc.stop_channels()
            self.kc = None

    async def _watch_disk(self) -> None:
        """End the kernel once it has written too much where it can; bubblewrap itself limits what only the submission sees."""
        most = 2 * self._limits.disk_bytes  # one file as large as allowed may be there
        while _size(self._scratch) <= most and _written(self._process) <= most:
            await asyncio.sleep(0.5)
        self.too_much = True
        _kill_children(self._process)
        await self._process.signal_kernel(signal.SIGKILL)

    async def run_cell(self, cell: NotebookNode, number: int) -> None:
        """Run a cell and keep its outputs. Raises DeadKernelError if the kernel ends, or cannot be stopped."""
        self._printed = 0
        began = time.monotonic()
        await self.async_execute_cell(cell, number)
        if time.monotonic() - began > self._limits.cell_seconds:
            await self._must_answer()

    async def check(self, task: Task) -> Verdict:
        """Ask for the verdict on an answer. Raises DeadKernelError as `run_cell` does."""
        question = secrets.token_hex(16)
        content = {"exercise": task.exercise.id, "answer": task.answer, "question": question}
        reply = await self._ask(REQUEST, content, REPLY, 2 * task.exercise.seconds + 2 * PATIENCE)
        verdict = self._seal.open(reply, question)
        if verdict is None or verdict.exercise != task.exercise.id:
            return Verdict(
                task.exercise.id,
                "no verdict",
                "the reply was not that of the check",
                replaced=("the reply to the check",),
            )
        return verdict

    async def _must_answer(self) -> None:
        await self._ask("kernel_info_request", {}, "kernel_info_reply", _PATIENCE)

    async def _ask(self, kind: str, content: dict[str, Any], reply_kind: str, seconds: float) -> dict[str, Any]:
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
            if reply["parent_header"].get("msg_id") == message["header"]["msg_id"] and reply["msg_type"] == reply_kind:
                return dict(reply["content"])
        raise DeadKernelError("no answer")

    def process_message(self, msg: dict[str, Any], cell: NotebookNode, cell_index: int) -> NotebookNode | None:
        """Keep an output, as long as the cell has not printed more than the limit."""
        if msg["msg_type"] in ("stream", "display_data", "execute_result", "error"):
            self._printed += len(json.dumps(msg["content"], default=str))
            if self._printed > self._limits.output_bytes:
                return None
        try:
            return super().process_message(msg, cell, cell_index)
        except (KeyError, TypeError, ValueError, AttributeError):  # a message of the submission's own making
            return None


def _argv(job: Job, scratch: Path, place: Path) -> list[str]:
    # -P: no module that was submitted is taken for one of Python's or of the course's.
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
    """Return all that a submission finds in its environment."""
    home = str(place.parent / "home")
    return {
        SETTINGS: str(place), "PATH": os.pathsep.join([str(Path(sys.executable).parent), "/usr/local/bin", "/usr/bin", "/bin"]),
        "LANG": "C.UTF-8", "HOME": home, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(course_root()),
        "AMP_COURSE_ROOT": str(course_root()), "MPLBACKEND": "agg", "IPYTHONDIR": f"{home}/.ipython", "TQDM_DISABLE": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip


def _size(folder: Path) -> int:
    """Return the bytes on disk of a folder that is being written to."""
    total = 0
    for place, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(place, name)).st_blocks * 512
    return total


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    """Give a folder that is deleted afterwards, however deep a submission has dug in it."""
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
    try:
        yield folder
    finally:
        _delete(folder)


def sweep() -> None:
    """Delete what grading runs have left behind that were killed."""
    import psutil

    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        number = folder.name.removeprefix(_PREFIX).split("-")[0]
        if number.isdigit() and not psutil.pid_exists(int(number)):
            _delete(folder)


def _delete(folder: Path) -> None:
    if shutil.which("rm"):  # shutil.rmtree calls itself for each level
        subprocess.run(["rm", "-rf", "--", str(folder)], check=False, capture_output=True)
    else:
        shutil.rmtree(folder, ignore_errors=True)


def _written(manager: Any) -> int:
    """Return the bytes that a submission's processes have sent to a disk, deleted files too."""
    import psutil

    total = 0
    process = getattr(getattr(manager, "provisioner", None), "process", None)
    with contextlib.suppress(psutil.Error, AttributeError):
        for one in psutil.Process(process.pid).children(recursive=True) if process else ():
            with contextlib.suppress(psutil.Error, AttributeError, OSError):
                total += one.io_counters().write_bytes
    return total


def _kill_children(manager: Any) -> None:
    """Kill what the submission has started; in bubblewrap it dies with its first process."""
    import psutil

    process = getattr(getattr(manager, "provisioner", None), "process", None)
    if process is None:
        return
    try:
        children = psutil.Process(process.pid).children(recursive=True)
    except psutil.Error:
        return
    for child in children:
        try:
            child.kill()
        except psutil.Error:
            continue
