"""Write solutions from the exercises' files, exercise notebooks from solutions, and the outputs of
notebooks.

    python -m amp_course.authoring make     write the answers in solutions/, and exercises/, again
    python -m amp_course.authoring check    exit 1 if that would change anything
    python -m amp_course.authoring run      run the notebooks whose stored outputs are out of date
    (or all, or those named)
    python -m amp_course.authoring new CHAPTER NAME      write a new exercise that works, to change
    python -m amp_course.authoring try NAME [FILE.py]    judge an answer, by default the solution's

A master is in nbgrader's form: learners write the lines between `### BEGIN SOLUTION` and
`### END SOLUTION`. Most of these come from the exercises' files; `answers.py` says which. Cells
tagged `solution-only` are left out of the exercises.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from amp_course import stamps
from amp_course.authoring.answers import write_answers
from amp_course.kit.errors import CourseError
from amp_course.kit.panel import PHOTOGRAPHS
from amp_course.kit.paths import course_root

BLANK = "# your code here"  # a blank function's body is its docstring
_EXERCISE_TAGS = {"raises-exception", "nbval-ignore-output"}


def make_exercise(master: NotebookNode) -> NotebookNode:
    """Return the exercise notebook of a solution notebook: answers blanked, outputs cleared."""
    from nbgrader.preprocessors import ClearSolutions  # here: only authors have nbgrader
    from traitlets.config import Config

    config = Config()
    config.ClearSolutions.code_stub = {"python": BLANK}
    config.ClearSolutions.enforce_metadata = False
    book = nbformat.from_dict(master)
    book.cells = [
        cell for cell in book.cells if "solution-only" not in cell.metadata.get("tags", [])
    ]
    book, _ = ClearSolutions(config=config).preprocess(book, {})
    for cell in book.cells:
        tags = [tag for tag in cell.metadata.get("tags", []) if tag in _EXERCISE_TAGS]
        cell.metadata = nbformat.from_dict({"tags": tags} if tags else {})
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    return tidy(book)


def tidy(book: NotebookNode) -> NotebookNode:
    """Keep only that metadata of a notebook which is the same on every machine."""
    kernel = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
    book.metadata = nbformat.from_dict({"kernelspec": kernel, "language_info": {"name": "python"}})
    for cell in book.cells:
        cell.metadata.pop("execution", None)
    return book


def texts() -> dict[Path, str]:
    """Return path → content of every solution and exercise notebook, made again."""
    root, found = course_root(), dict[Path, str]()
    for master in sorted((root / "solutions").glob("*.ipynb")):
        book = nbformat.read(master, as_version=4)
        write_answers(book, chapter=master.stem.partition("_")[2])
        found[master] = nbformat.writes(book) + "\n"
        found[root / "exercises" / master.name] = nbformat.writes(make_exercise(book)) + "\n"
    return found


def problems() -> list[str]:
    """Return a line on each file in solutions/ and exercises/ that `make` would change."""
    wanted = texts()
    found = [
        f"{path.parent.name}/{path.name} differs from what it is made of"
        for path, text in wanted.items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    visible = sorted((course_root() / "exercises").glob("[!.]*"))
    strays = [path.name for path in visible if path not in wanted]
    return found + [f"{name} has no master in solutions/" for name in strays]


def notebooks() -> list[Path]:
    """Return every notebook that is stored with its outputs."""
    folders = (course_root() / name for name in ("notebooks", "solutions"))
    return [path for folder in folders for path in sorted(folder.glob("*.ipynb"))]


def out_of_date() -> dict[Path, str]:
    """Return the notebooks whose stored outputs may be out of date, and why."""
    found = {path: stamps.problem(nbformat.read(path, as_version=4)) for path in notebooks()}
    return {path: reason for path, reason in found.items() if reason}


def run(path: Path) -> None:
    """Run a notebook from top to bottom, in its folder; store it with its outputs and a stamp."""
    from nbclient import NotebookClient

    from amp_course.authoring.photographs import photograph_panels

    book = nbformat.read(path, as_version=4)
    book.cells.append(nbformat.v4.new_code_cell(stamps.REPORT))
    client = NotebookClient(
        book,
        timeout=300,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
        store_widget_state=False,
        coalesce_streams=True,
    )
    client.execute()
    photograph_panels(book)
    report = json.loads(book.cells.pop().outputs[0].text)
    for cell in book.cells:
        for output in cell.get("outputs", []):
            # without this machine's paths
            if output.output_type == "error":
                output.traceback = [line.replace(sys.prefix, "…") for line in output.traceback]
    stamps.stamp(tidy(book), **report)
    nbformat.write(book, path)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one of the verbs; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m amp_course.authoring")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("make", help="write the answers in solutions/, and exercises/, again")
    verbs.add_parser("check", help="exit 1 if that would change anything")
    runs = verbs.add_parser("run", help="run the notebooks whose stored outputs are out of date")
    runs.add_argument("notebooks", nargs="*", type=Path, help="these, whatever their age")
    runs.add_argument("--all", action="store_true", help="every notebook, whatever its age")
    news = verbs.add_parser("new", help="write a new exercise that works, to change")
    news.add_argument("chapter", help='its word or number, as in "loop"')
    news.add_argument("name", help="of the exercise, and of the function that the learner writes")
    tries = verbs.add_parser("try", help="judge an answer, by default the solution's")
    tries.add_argument("name", help='of the exercise, as in "update_rule" or "scaler.update_rule"')
    tries.add_argument("file", nargs="?", type=Path, help="Python code that defines the answer")
    args = parser.parse_args(argv)
    if args.verb in ("new", "try"):
        return _write(args)
    if args.verb == "make":
        for path, text in texts().items():
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(f"made {path.parent.name}/{path.name}")
        return 0
    if args.verb == "check":
        found = problems()
        for problem in found:
            print(f"{problem}: run `make exercises`", file=sys.stderr)
        return 1 if found else 0
    return _run_notebooks(args.notebooks, args.all)


def _write(args: argparse.Namespace) -> int:
    from amp_course.authoring import writing  # here: it loads torch

    try:
        if args.verb == "try":
            print(writing.try_answer(args.name, args.file))
            return 0
        for path in writing.new(args.chapter, args.name):
            print(f"wrote {path.relative_to(course_root())}")
    except (CourseError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    print("It asks to double a tensor, and works. Change it; see what an answer gets by")
    print(f"    python -m amp_course.authoring try {args.name} answer.py")
    print(f"then: make exercises notebooks && pytest tests/exercises -k {args.name}")
    print("Where the chapter says how many exercises it has, and their minutes, add this one.")
    return 0


def _run_notebooks(named: Sequence[Path], every: bool) -> int:
    os.environ["TQDM_DISABLE"] = "1"  # progress bars would depend on time
    os.environ[PHOTOGRAPHS] = "1"
    chosen = dict.fromkeys(named or notebooks(), "asked for") if every or named else out_of_date()
    with tempfile.TemporaryDirectory() as work:
        os.environ["AMP_COURSE_WORK"] = str(Path(work) / "my_work")  # not the author's progress
        for number, (path, reason) in enumerate(chosen.items(), 1):
            print(f"[{number}/{len(chosen)}] running {path}: {reason}", flush=True)
            run(path.resolve())
    if not chosen:
        print("every notebook's outputs are up to date; --all runs them anyway")
    return 0
