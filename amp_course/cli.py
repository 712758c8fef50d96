"""The command `amp-course`: open the course, update it, show progress,
report on the machine or time it, start a chapter over.
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

from amp_course import __version__
from amp_course.kit.errors import CourseError, describe_missing, describe_os_error

# torch, Jupyter and the chapters are imported where they are needed: `amp-course --help` answers at
# once.

Commands = argparse._SubParsersAction  # what parsers of commands are added to

EXAMPLES = """\
examples:
  amp-course lab                          open the course in your browser
  amp-course lab --no-browser --port 8890 on a machine that you reach through ssh
  amp-course progress                     what you have solved so far
  amp-course report --json                what this machine can do, for a program to read
  amp-course bench --quick                what mixed precision buys on this machine, in a minute
  amp-course bench --compare A B          two machines' results (JSON) next to each other
  amp-course doctor train.py --epochs 1   what is wrong with how a script of yours trains
  amp-course doctor -m my.train --lr 0.1  the same for a module
  amp-course reset 06                     a fresh copy of a chapter's exercises; yours is kept
  amp-course mistakes loop                for instructors: the mistakes that the checks explain
  amp-course classroom init class/        for instructors: a class with nbgrader, for all chapters
  amp-course update                       the next version of the course; what you changed is kept
"""

LAB = """\
Copies to my_work/ the exercises that you do not have yet, and starts JupyterLab at the first
notebook. Your copies are never overwritten. The server listens on this machine only, behind a
token. JupyterLab's own options are passed on to it; what follows `--` is passed on unchecked.
"""

BENCH = """\
Times this machine for mixed precision: matmuls by dtype and size, memory, the launch of an op, and
three trainings in fp32 and under AMP. Prints the page with one recommendation and saves it as JSON
and PNG. Close other programs first. Ctrl-C ends it early and keeps what is done. The JSON holds no
names of yours and no paths: send it to others, and compare.
"""

DOCTOR = """\
Runs your unchanged training script for some updates, in a process of its own, and prints one page:
what is wrong with how it trains, in order of harm, each with its cause, the evidence, the fix and
the chapter that teaches it. Options of the doctor come before the script; what follows the script
are its own arguments. Files that the script writes in its folder or in this one are put back as
they were. Exit code: 0 no fault, 1 a fault, 2 it could not run or too little was seen of it, 130
interrupted.
"""

RESET = """\
Gives you a fresh copy of a chapter's exercises. Yours is kept next to it, under a name with the
date.
"""

MISTAKES = """\
Lists, for an instructor, the mistakes that the checks know: exercise by exercise, with the words of
the card that each goes against and what a learner is told. Numbers in it are those of one run.
"""

CLASSROOM = """\
For instructors. `init` makes a folder for a class, with an nbgrader assignment for each chapter, or
for those that you name. `grade` grades what students submitted, each submission in a fresh kernel,
under bubblewrap where it runs. `report` makes the class's page: who solved what, which mistakes
were met, where hints were needed, what to teach next. Needs nbgrader.
"""

UPDATE = """\
Fetches the next version of the course with git, installs what it needs, and puts changed exercises
next to your copies. Notebooks that you ran or changed are moved to my_work/before-update-DATE/
first. Save and close your notebooks, and stop JupyterLab, before you update.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code: 0, or 2 when something is for the reader to put
    right, or a signal's.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        # a terminal without × or ⁻ still shows the rest
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        try:
            return _run(sys.argv[1:] if argv is None else list(argv))
        finally:
            if sys.stdout:
                # here, and not when Python ends: then it is too late to say anything
                sys.stdout.flush()
    except CourseError as error:
        problem = str(error)
    except ModuleNotFoundError as error:
        problem = describe_missing(error)
    except BrokenPipeError:
        _silence()
        return 141  # as any program that SIGPIPE ends: the reader has seen enough
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        _silence()
        problem = describe_os_error(error, "this could not be finished")
    with contextlib.suppress(OSError):
        print(f"amp-course: {problem}", file=sys.stderr)
    return 2


def _silence() -> None:
    """Let go of what could not be printed; else Python tries again when it ends, and complains."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(argv: list[str]) -> int:
    own, unchecked = (argv, []) if argv[:1] == ["doctor"] else _split(argv)
    parser = _parser()
    args, jupyter_args = parser.parse_known_args(own)
    if args.command == "lab":
        _lab(args, jupyter_args, unchecked)
    elif jupyter_args + unchecked:
        parser.error(f"unrecognized arguments: {' '.join(jupyter_args + unchecked)}")
    elif args.command is None:
        parser.print_help()
    else:
        return args.run(args) or 0
    return 0


def _split(argv: list[str]) -> tuple[list[str], list[str]]:
    """Cut at the first `--`: what follows is JupyterLab's."""
    cut = argv.index("--") if "--" in argv else len(argv)
    return argv[:cut], argv[cut + 1 :]


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="amp-course",
        description="The course on automatic mixed precision training in PyTorch.",
        epilog=EXAMPLES,
        formatter_class=raw,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"amp-course {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")

    lab = _command(commands, "lab", "open the course in JupyterLab", _lab, LAB)
    lab.usage = "amp-course lab [--no-browser] [--port N] [options of JupyterLab] [-- ...]"
    lab.add_argument(
        "--no-browser", dest="browser", action="store_false", help="only print the address to open"
    )
    lab.add_argument(
        "--port",
        type=_port,
        metavar="N",
        help="listen on this port (default: the first free one from 8888)",
    )
    _command(commands, "progress", "show which exercises you have solved", _progress)
    report = _command(commands, "report", "say what this machine can do", _report)
    report.add_argument("--json", action="store_true", help="print it as JSON")
    _add_bench(commands)
    _add_doctor(commands)
    reset = _command(commands, "reset", "get a fresh copy of a chapter's exercises", _reset, RESET)
    reset.add_argument("chapter", metavar="CHAPTER", help="its number or its word: 06 or loop")
    mistakes = _command(
        commands, "mistakes", "list the mistakes that the checks explain", _mistakes, MISTAKES
    )
    mistakes.add_argument(
        "chapter",
        metavar="CHAPTER",
        nargs="?",
        help="its number or its word; all of them without it",
    )
    mistakes.add_argument("--json", action="store_true", help="print them as JSON")
    _add_classroom(commands)
    _command(commands, "update", "get the next version of the course", _update, UPDATE)
    return parser


def _command(
    commands: Commands[argparse.ArgumentParser],
    name: str,
    what: str,
    run: Callable[..., object],
    text: str | None = None,
) -> argparse.ArgumentParser:
    """Add a command; `run` is called with the parsed arguments, and may return an exit code."""
    parser = commands.add_parser(name, help=what, description=text, allow_abbrev=False)
    parser.set_defaults(run=run)
    return parser


def _add_bench(commands: Commands[argparse.ArgumentParser]) -> None:
    bench = _command(
        commands, "bench", "time what mixed precision buys on this machine", _bench, BENCH
    )
    add = bench.add_argument
    add(
        "--quick",
        action="store_true",
        help="within a minute instead of five; the times spread more",
    )
    add(
        "--device",
        choices=["cpu", "cuda"],
        help="default: the GPU if torch finds one, else the CPU",
    )
    add(
        "--out",
        metavar="FOLDER",
        help="save JSON and PNG there, under new names (default: my_work/)",
    )
    add("--json", metavar="FILE", help="save the JSON as FILE; - prints it instead of the text")
    add("--png", metavar="FILE", help="save the picture as FILE")
    add("--force", action="store_true", help="replace FILE if it exists")
    add(
        "--compare",
        nargs=2,
        metavar=("A", "B"),
        help="only compare two JSON files; measures nothing",
    )
    bench.set_defaults(refuse=bench.error)


def _add_doctor(commands: Commands[argparse.ArgumentParser]) -> None:
    doctor = _command(
        commands, "doctor", "say what is wrong with how a script of yours trains", _doctor, DOCTOR
    )
    doctor.usage = (
        "amp-course doctor [--json] [--html FILE [--force]] [--steps N] [--timeout S] [--ranks N] "
        "[--keep-files]\n                         (SCRIPT | -m MODULE) [ARGS ...]"
    )
    add = doctor.add_argument
    add("--json", action="store_true", help="print the page as JSON")
    add("--html", metavar="FILE", help="write the page as HTML, too")
    add("--force", action="store_true", help="replace FILE if it exists")
    add(
        "--steps",
        type=_count,
        default=100,
        metavar="N",
        help="updates to look at, at most (default: 100)",
    )
    add(
        "--timeout",
        type=_count,
        default=120,
        metavar="S",
        help="seconds it may take (default: 120)",
    )
    add("--ranks", type=_count, default=1, metavar="N", help="start it by torchrun in N processes")
    add("--keep-files", action="store_true", help="leave what the script writes")
    add(
        "-m",
        dest="module",
        action="store_true",
        help="run a module by its name, as `python -m MODULE`",
    )
    add("script", metavar="SCRIPT", help="the file that you run by `python SCRIPT`, or a module")
    add("args", nargs=argparse.REMAINDER, metavar="ARGS", help="its own arguments")


def _add_classroom(commands: Commands[argparse.ArgumentParser]) -> None:
    classroom = _command(commands, "classroom", "run a class with nbgrader", _classroom, CLASSROOM)
    verbs = classroom.add_subparsers(dest="verb", metavar="VERB", required=True)
    for verb, what in (
        ("init", "make the folder of a class, or add chapters to it"),
        ("grade", "grade what was submitted; an interrupted run goes on"),
        ("report", "make the class's page, as HTML and CSV"),
    ):
        parser = _command(verbs, verb, what, _classroom, f"{what[0].upper()}{what[1:]}.")
        parser.add_argument("folder", metavar="FOLDER", help="the class's folder")
        parser.add_argument(
            "chapters",
            metavar="CHAPTER",
            nargs="*",
            default=[],
            help="by number or word; default: every one there is",
        )
        if verb == "grade":
            parser.add_argument(
                "--jobs",
                type=_count,
                metavar="N",
                help="submissions at a time (default: one a core)",
            )
            parser.add_argument(
                "--again", action="store_true", help="grade those too that have not changed"
            )


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) >= 1):
        raise argparse.ArgumentTypeError(f"'{text}' is not a number from 1 on")
    return int(text)


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"'{text}' is not a port: give a number from 1 to 65535")
    return int(text)


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
                "mistake": one.name,
                "violates": one.violates,
                "feedback": _feedback(exercise, one),
            }
            for _, exercise in exercises
            for one in exercise.mistakes
        ]
        print(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    for chapter, exercise in exercises:
        print(
            f"{chapter.number:02d} {chapter.word}, exercise {exercise.number}: {exercise.title} "
            f"({exercise.name})"
        )
        for one in exercise.mistakes:
            print(f"   {one.name}" + (f"  (against: “{one.violates}”)" if one.violates else ""))
            print(textwrap.indent(textwrap.fill(_feedback(exercise, one), 94), " " * 6))
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
