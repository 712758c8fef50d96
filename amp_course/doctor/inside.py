"""Run a script in this process and examine it; the doctor starts this as

    python inside.py FOLDER STEPS END KEEP SCRIPT [ARGS]

Instead of a script, `-m MODULE` runs a module. END is when its time is up, as `time.time` counts.
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

_EARLIER = 2.0  # seconds that a child's time is up before that of its parent
_examination: Examination | None = None  # of this process


def begin(steps: int, seconds: float, folder: Path, keep: str) -> Examination:
    """Install the examination in this process, and in those that it starts by `multiprocessing`."""
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
            options = steps, max(1.0, left), folder, keep
            process._target = functools.partial(_run_target, target, options)
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


def _run_target(target: Callable[..., Any], options: Any, *args: Any, **kwargs: Any) -> None:
    """Run the target of a child process, and examine it there."""
    examination = _examination or begin(*options)  # a forked child has one already
    run(examination, functools.partial(target, *args, **kwargs))


def run(examination: Examination, program: Callable[[], Any]) -> None:
    """Run a program to its end or to that of the examination, whichever comes first."""
    try:
        program()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        caught = ended.__context__  # what `torch.multiprocessing.spawn` catches in a child, say
        trains = examination.watchers.observer is not None
        if code and trains and isinstance(caught, Exception):
            examination.finish("error", code, caught)
        else:
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
    folder, steps, end, keep, *command = arguments
    examination = begin(int(steps), max(1.0, float(end) - time.time()), Path(folder), keep)
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
        report = traceback.TracebackException.from_exception(error)
        _remove_own_frames(report)
        print("".join(report.format()), end="", file=sys.stderr)
        sys.exit(1)


def _remove_own_frames(report: traceback.TracebackException) -> None:
    """Remove the frames that the doctor adds to a traceback."""
    package = os.path.dirname(os.path.dirname(__file__))
    folders = (os.path.join(package, one) for one in ("watching", "doctor"))
    ours = (*folders, "<frozen", runpy.__file__)
    frames = [one for one in report.stack if not one.filename.startswith(ours)]
    report.stack = traceback.StackSummary.from_list(frames)
    for cause in filter(None, (report.__cause__, report.__context__)):
        _remove_own_frames(cause)


if __name__ == "__main__":
    # Imported under its own name, so that pickled objects of this module can be loaded
    from amp_course.doctor import inside

    inside.main(sys.argv[1:])
