"""The command `amp-course`: open the course, show progress, report on the machine, set a chapter back."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from amp_course import __version__
from amp_course.kit.errors import CourseError

# torch, Jupyter and the chapters are imported where they are needed: `amp-course --help` answers at once.

EXAMPLES = """\
examples:
  amp-course lab                          open the course in your browser
  amp-course lab --no-browser --port 8890 on a machine that you reach through ssh
  amp-course progress                     what you have solved so far
  amp-course report --json                what this machine can do, for a program to read
  amp-course reset 06                     a fresh copy of a chapter's exercises; yours is kept
"""

LAB = """\
Copies to my_work/ the exercises that you do not have yet, and starts JupyterLab at the first notebook. Your copies are
never overwritten. The server listens on this machine only, behind a token. Any other option is handed on to JupyterLab.
"""

RESET = """\
Gives you a fresh copy of a chapter's exercises. Yours is kept beside it, under a name with the date.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code: 0, or 2 when something is for the reader to put right."""
    own, jupyter_args = _split(sys.argv[1:] if argv is None else list(argv))
    parser = _parser()
    args, unknown = parser.parse_known_args(own)
    jupyter_args = unknown + jupyter_args
    if args.command is None:
        parser.print_help()
        return 0
    if jupyter_args and args.command != "lab":
        parser.error(f"unrecognized arguments: {' '.join(jupyter_args)}")
    try:
        if args.command == "lab":
            _lab(args.port, args.browser, jupyter_args)
        elif args.command == "progress":
            _progress()
        elif args.command == "report":
            _report(args.json)
        else:
            _reset(args.chapter)
    except CourseError as error:
        print(f"amp-course: {error}", file=sys.stderr)
        return 2
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

    lab = commands.add_parser("lab", help="open the course in JupyterLab", description=LAB, allow_abbrev=False)
    lab.usage = "amp-course lab [--no-browser] [--port N] [any option of JupyterLab]"
    lab.add_argument("--no-browser", dest="browser", action="store_false", help="only print the address to open")
    lab.add_argument(
        "--port", type=_port, metavar="N", help="listen on this port (default: the first free one from 8888)"
    )
    commands.add_parser("progress", help="show which exercises you have solved", allow_abbrev=False)
    report = commands.add_parser("report", help="say what this machine can do", allow_abbrev=False)
    report.add_argument("--json", action="store_true", help="print it as JSON")
    reset = commands.add_parser(
        "reset", help="get a fresh copy of a chapter's exercises", description=RESET, allow_abbrev=False
    )
    reset.add_argument("chapter", metavar="CHAPTER", help="its number or its word: 06 or loop")
    return parser


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"'{text}' is not a port: give a number from 1 to 65535")
    return int(text)


def _lab(port: int | None, browser: bool, jupyter_args: Sequence[str]) -> None:
    from amp_course import lab, work

    for change in work.copy_missing():
        print(change.message)
    lab.start(port, browser, jupyter_args)


def _progress() -> None:
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


def _report(as_json: bool) -> None:
    from amp_course.kit.hardware import machine_report

    report = machine_report()
    if as_json:
        import json

        print(json.dumps(report.to_dict(), indent=2))
    else:
        print(report)


def _reset(name: str) -> None:
    from amp_course import work
    from amp_course.course import find

    for change in work.reset(find(name)):
        print(change.message)
