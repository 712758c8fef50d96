"""The command `amp-course`: opens the course, updates it, shows progress, times the machine and so
on.

torch, Jupyter and the chapters are imported where they are needed, so that `amp-course --help` is
fast.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from amp_course.cli_parser import make_parser
from amp_course.kit.errors import CourseError, describe_missing, describe_os_error


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code: 0, or 2 for something that the user can fix, or a
    signal's.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        # a terminal without × or ⁻ still shows the rest
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        try:
            return _run(sys.argv[1:] if argv is None else list(argv))
        finally:
            if sys.stdout:
                sys.stdout.flush()  # when Python ends, it is too late to report a failure
    except CourseError as error:
        problem = str(error)
    except ModuleNotFoundError as error:
        problem = describe_missing(error)
    except BrokenPipeError:
        _discard_output()
        return 141  # as for any program that SIGPIPE ends
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        _discard_output()
        problem = describe_os_error(error, "this could not be finished")
    with contextlib.suppress(OSError):
        print(f"amp-course: {problem}", file=sys.stderr)
    return 2


def _discard_output() -> None:
    """Drop what could not be printed, or Python tries again when it ends, and complains."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(argv: list[str]) -> int:
    # what follows the first `--` is JupyterLab's; the doctor's script may have a `--` of its own
    cut = argv.index("--") if "--" in argv and argv[0] != "doctor" else len(argv)
    unchecked = argv[cut + 1 :]
    parser = make_parser()
    args, jupyter_args = parser.parse_known_args(argv[:cut])
    if args.command == "lab":
        _lab(args, jupyter_args, unchecked)
    elif jupyter_args + unchecked:
        parser.error(f"unrecognized arguments: {' '.join(jupyter_args + unchecked)}")
    elif args.command is None:
        parser.print_help()
    else:
        return _COMMANDS[args.command](args) or 0
    return 0


def _lab(args: argparse.Namespace, jupyter_args: Sequence[str], unchecked: Sequence[str]) -> None:
    from amp_course import lab, work

    lab.check_options(jupyter_args, own=("--port", "--no-browser"))
    for change in work.copy_missing():
        print(change.message)
    lab.start(args.port, args.browser, [*jupyter_args, *unchecked])


def _progress(args: argparse.Namespace) -> None:
    from amp_course.checking import progress
    from amp_course.course import CHAPTERS, available

    so_far = progress.load()
    if so_far.note:
        print(f"amp-course: {so_far.note}", file=sys.stderr)
    ready = available()
    for chapter in ready:
        exercises = chapter.exercises()
        done = sum(so_far.state(exercise.id) == "correct" for exercise in exercises)
        count = f"  {done} of {len(exercises)} exercises" if exercises else ""
        print(f"{chapter.number:02d} {chapter.word:<12} {chapter.question}{count}")
        for exercise in exercises:
            print(f"   {exercise.number:2d} {so_far.state(exercise.id):<14} {exercise.title}")
    coming = [chapter.word for chapter in CHAPTERS if chapter not in ready]
    if coming:
        print(f"In the making: {', '.join(coming)}.")


def _report(args: argparse.Namespace) -> None:
    from amp_course.kit.hardware import machine_report

    report = machine_report()
    print(json.dumps(report.to_dict(), indent=2) if args.json else report)


def _bench(args: argparse.Namespace) -> int:
    if args.compare:
        if args.quick or args.force or args.device or args.out or args.json or args.png:
            args.refuse(
                "--compare reads two files and measures nothing: leave the other options out"
            )
        from amp_course.speed.bench.compare import compare_files

        print(compare_files(*map(Path, args.compare)))
        return 0
    if args.out and (args.json or args.png):
        args.refuse("--out chooses the names itself: give either --out, or --json and --png")
    from amp_course.speed.bench.command import Targets, bench
    from amp_course.speed.bench.run import FULL, QUICK

    targets = Targets(Path(args.out) if args.out else None, args.json, args.png, args.force)
    return bench(args.device, QUICK if args.quick else FULL, targets)


def _doctor(args: argparse.Namespace) -> int:
    from amp_course.doctor.command import examine

    return examine(
        args.script,
        args.args,
        module=args.module,
        as_json=args.json,
        html=args.html,
        force=args.force,
        steps=args.steps,
        seconds=args.timeout,
        keep_files=args.keep_files,
        ranks=args.ranks,
    )


def _classroom(args: argparse.Namespace) -> None:
    from amp_course.classroom import command

    if args.verb == "init":
        command.init(args.folder, args.chapters)
    elif args.verb == "grade":
        command.grade(args.folder, args.chapters, args.jobs, args.again)
    else:
        command.make_report(args.folder, args.chapters)


def _mistakes(args: argparse.Namespace) -> None:
    from amp_course.course import available, find

    chapters = available() if args.chapter is None else [find(args.chapter)]
    exercises = [(chapter, exercise) for chapter in chapters for exercise in chapter.exercises()]
    if args.json:
        rows = [
            {
                "exercise": exercise.id,
                "mistake": mistake.name,
                "violates": mistake.violates,
                "feedback": _feedback(exercise, mistake),
            }
            for _, exercise in exercises
            for mistake in exercise.mistakes
        ]
        print(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    for chapter, exercise in exercises:
        print(
            f"{chapter.number:02d} {chapter.word}, exercise {exercise.number}: {exercise.title} "
            f"({exercise.name})"
        )
        for mistake in exercise.mistakes:
            violates = f"  (against: “{mistake.violates}”)" if mistake.violates else ""
            print(f"   {mistake.name}{violates}")
            print(textwrap.indent(textwrap.fill(_feedback(exercise, mistake), 94), " " * 6))
        print()


def _feedback(exercise: Any, mistake: Any) -> str:
    from amp_course.checking.limit import TimeUp, within
    from amp_course.kit.markup import plain_text

    try:  # a mistake may run forever; processes may take long to start
        return plain_text(within(60.0, lambda: exercise.judge.feedback(mistake)))
    except TimeUp:
        return plain_text(mistake.feedback)


def _reset(args: argparse.Namespace) -> None:
    from amp_course import work
    from amp_course.course import find

    for change in work.reset(find(args.chapter)):
        print(change.message)


def _update(args: argparse.Namespace) -> None:
    from amp_course.update import update

    update()


_COMMANDS: dict[str, Callable[[argparse.Namespace], int | None]] = {
    "progress": _progress,
    "report": _report,
    "bench": _bench,
    "doctor": _doctor,
    "reset": _reset,
    "mistakes": _mistakes,
    "classroom": _classroom,
    "update": _update,
}
