"""Run one submission in a kernel of its own, cell by cell, with verdicts in place of the cells with
points.

A cell that never ends is stopped. If a cell ends the kernel, the others are run again in a new one:
one bad answer does not cost a student the other points.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field, replace
from typing import cast

from nbclient.exceptions import DeadKernelError
from nbformat import NotebookNode
from nbformat.v4 import new_output

from amp_course.checking import Outcome
from amp_course.checking.outcome import State
from amp_course.classroom.assignment import TEST, Task
from amp_course.classroom.job import Job
from amp_course.classroom.kernel_client import Kernel, scratch_folder
from amp_course.classroom.verdict import Verdict

_STARTS = 4  # kernels for one submission, at most


@dataclass
class Run:
    """A submission that ran: its notebook, the verdicts by exercise's id, other findings."""

    book: NotebookNode
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    seconds: float = 0.0


async def run(job: Job) -> Run:
    """Run a prepared submission; this returns within the limits, whatever the submission does."""
    began, done, limits = time.monotonic(), Run(job.book), job.limits
    left_out: set[int] = set()
    for _ in range(_STARTS):
        remaining = limits.seconds - (time.monotonic() - began)
        try:
            async with asyncio.timeout(max(remaining, 0.0)):
                culprit = await _once(job, done, left_out)
        except TimeoutError:
            done.findings.append(
                f"it was stopped after {limits.seconds:.0f} seconds in all; what came later is not "
                "graded"
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
    """Run the notebook in a new kernel. Returns the number of the cell that ended the kernel,
    or None if none did.
    """
    by_cell = {TEST + task.exercise.name: task for task in job.tasks}
    with scratch_folder() as scratch:
        async with Kernel(job, scratch) as kernel:
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
                    # nbclient mistakes an interrupted run for a dead kernel
                    if current is not None and current.cancelling():
                        raise asyncio.CancelledError from None
                    _end(done, cell, number, task)
                    if kernel.excess:
                        done.findings.append(f"{kernel.excess} and was stopped")
                    return number
    return None


def _end(done: Run, cell: NotebookNode, number: int, task: Task | None) -> None:
    if task is not None:
        why = "the process ended while this answer was checked"
        done.verdicts[task.exercise.id] = verdict = Verdict(task.exercise.id, "no verdict", why)
        _show(cell, verdict)
    else:
        name = cell.metadata.get("nbgrader", {}).get("grade_id") or f"number {number + 1}"
        text = "this cell ended the kernel, or held it up"
        cell.outputs = [new_output("error", ename="DeadKernel", evalue="", traceback=[text])]
        done.findings.append(
            f"the cell {name} ended its kernel or could not be stopped; the others were run "
            "without it"
        )


def _with_error(verdict: Verdict, task: Task, book: NotebookNode) -> Verdict:
    """Say so if an answer is missing because its cell raised: that exercise was attempted."""
    raised = [
        output.ename
        for cell in book.cells
        if cell.metadata.get("nbgrader", {}).get("grade_id") == task.exercise.name
        for output in cell.get("outputs", ())
        if output.output_type == "error"
    ]
    if verdict.state != "not attempted" or not raised:
        return verdict
    why = f"the answer's cell raised {raised[-1]}, so there was nothing to check"
    return replace(verdict, state="not yet", message=why)


def _show(cell: NotebookNode, verdict: Verdict) -> None:
    """Give a cell with points its outputs: the check's box, and an error if there are no points."""
    state = verdict.state if verdict.state in ("correct", "not attempted") else "not yet"
    outcome = Outcome(cast(State, state), verdict.message, verdict.notes, verdict.mistake)
    data = {"text/html": outcome._html(), "text/plain": str(outcome)}
    cell.outputs = [new_output("display_data", data=data)]
    if verdict.state != "correct" or verdict.replaced:
        name, why = "AssertionError", "no points yet: the message above says why"
        traceback = [f"{name}: {why}"]
        cell.outputs.append(new_output("error", ename=name, evalue=why, traceback=traceback))
