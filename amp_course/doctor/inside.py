"""Run a script in this process, examined: `python inside.py FOLDER STEPS SECONDS KEEP SCRIPT
[ARGS]`. The doctor starts it.

Instead of a script, `-m MODULE` runs a module.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    sys.path.pop(0)  # this file's folder: the script's own takes its place

import contextlib
import functools
import multiprocessing
import multiprocessing.process
import os
import runpy
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from amp_course.doctor.examination import Examination
from amp_course.doctor.journal import Journal

_EARLIER = 2.0  # seconds before the time of the process that started it, a child's is up
_examination: Examination | None = None  # of this process


def begin(steps: int, seconds: float, folder: Path, keep: str) -> Examination:
    """Install the examination in this process, and in what it starts by `multiprocessing`."""
    global _examination
    examination = _examination = Examination(steps, seconds, folder)
    if keep:
        Journal(folder, map(Path, keep.split(os.pathsep))).install()
    start = multiprocessing.process.BaseProcess.start

    @functools.wraps(start)
    def started(process: Any) -> None:
        target = process._target
        of_torch = getattr(target, "__module__", "").startswith("torch.utils.data")
        if target is not None and not of_torch:
            left = examination.began + seconds - time.monotonic() - _EARLIER
            process._target = _Examined(target, steps, max(1.0, left), folder, keep)
        start(process)

    multiprocessing.process.BaseProcess.start = started  # type: ignore[assignment, method-assign]
    examination.install()
    sys.addaudithook(functools.partial(_note_program, examination))
    return examination


def _note_program(examination: Examination, event: str, args: tuple[Any, ...]) -> None:
    if event == "subprocess.Popen":
        words = [args[1]] if isinstance(args[1], (str, bytes)) else args[1]
        text = " ".join(map(os.fsdecode, words))
        if "python" in text or "torchrun" in text or "accelerate" in text:
            examination.programs.append(text[:80])


class _Examined:
    """The target of a process, examined there."""

    def __init__(
        self, target: Callable[..., Any], steps: int, seconds: float, folder: Path, keep: str
    ) -> None:
        self.target, self.options = target, (steps, seconds, folder, keep)

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        examination = _examination or begin(*self.options)  # a fork has it already
        run(examination, functools.partial(self.target, *args, **kwargs))


def run(examination: Examination, program: Callable[[], Any]) -> None:
    """Run a program to its end or to that of the examination, whichever comes first."""
    try:
        program()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        examination.finish("exit", code)
        raise
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        examination.finish("error", 1, error)
        raise
    examination.finish("end")


def main(arguments: list[str]) -> None:
    """Run a script as `python SCRIPT ARGS` does, or a module as `python -m MODULE ARGS` does."""
    folder, steps, seconds, keep, *command = arguments
    examination = begin(int(steps), float(seconds), Path(folder), keep)
    with contextlib.suppress(AttributeError, ValueError):
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    if command[0] == "-m":
        sys.path.insert(0, os.getcwd())
        sys.argv = command[1:]
        program = functools.partial(
            runpy.run_module, command[1], run_name="__main__", alter_sys=True
        )
    else:
        sys.path.insert(0, os.path.dirname(os.path.abspath(command[0])))
        sys.argv = command
        program = functools.partial(runpy.run_path, command[0], run_name="__main__")
    try:
        run(examination, program)
    except Exception as error:
        told = traceback.TracebackException.from_exception(error)
        _keep_readers_frames(told)
        print("".join(told.format()), end="", file=sys.stderr)
        sys.exit(1)


def _keep_readers_frames(told: traceback.TracebackException) -> None:
    """Leave out what the doctor adds to a traceback."""
    package = os.path.dirname(os.path.dirname(__file__))
    folders = (os.path.join(package, one) for one in ("watching", "doctor"))
    ours = (*folders, "<frozen", runpy.__file__)
    own = [one for one in told.stack if not one.filename.startswith(ours)]
    told.stack = traceback.StackSummary.from_list(own)
    for other in filter(None, (told.__cause__, told.__context__)):
        _keep_readers_frames(other)


if __name__ == "__main__":
    # under its own name, so that what is pickled is found again
    from amp_course.doctor import inside

    inside.main(sys.argv[1:])
