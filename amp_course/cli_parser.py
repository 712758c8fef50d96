"""The command-line options of `amp-course`, and its help."""

from __future__ import annotations

import argparse

from amp_course import __version__

Commands = argparse._SubParsersAction  # the object that commands are added to

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


def make_parser() -> argparse.ArgumentParser:
    """Return the parser; what it parses has the name of the command in `command`."""
    parser = argparse.ArgumentParser(
        prog="amp-course",
        description="The course on automatic mixed precision training in PyTorch.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"amp-course {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    _add_lab(commands)
    _add(commands, "progress", "show which exercises you have solved")
    report = _add(commands, "report", "say what this machine can do")
    report.add_argument("--json", action="store_true", help="print it as JSON")
    _add_bench(commands)
    _add_doctor(commands)
    reset = _add(commands, "reset", "get a fresh copy of a chapter's exercises", RESET)
    reset.add_argument("chapter", metavar="CHAPTER", help="its number or its word: 06 or loop")
    mistakes = _add(commands, "mistakes", "list the mistakes that the checks explain", MISTAKES)
    mistakes.add_argument(
        "chapter",
        metavar="CHAPTER",
        nargs="?",
        help="its number or its word; all of them without it",
    )
    mistakes.add_argument("--json", action="store_true", help="print them as JSON")
    _add_classroom(commands)
    _add(commands, "update", "get the next version of the course", UPDATE)
    return parser


def _add(
    commands: Commands[argparse.ArgumentParser], name: str, what: str, text: str | None = None
) -> argparse.ArgumentParser:
    return commands.add_parser(name, help=what, description=text, allow_abbrev=False)


def _add_lab(commands: Commands[argparse.ArgumentParser]) -> None:
    lab = _add(commands, "lab", "open the course in JupyterLab", LAB)
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


def _add_bench(commands: Commands[argparse.ArgumentParser]) -> None:
    bench = _add(commands, "bench", "time what mixed precision buys on this machine", BENCH)
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
    doctor = _add(commands, "doctor", "say what is wrong with how a script of yours trains", DOCTOR)
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
    classroom = _add(commands, "classroom", "run a class with nbgrader", CLASSROOM)
    verbs = classroom.add_subparsers(dest="verb", metavar="VERB", required=True)
    for verb, what in (
        ("init", "make the folder of a class, or add chapters to it"),
        ("grade", "grade what was submitted; an interrupted run goes on"),
        ("report", "make the class's page, as HTML and CSV"),
    ):
        parser = _add(verbs, verb, what, f"{what[0].upper()}{what[1:]}.")
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
