"""What `amp-course classroom …` does."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

from amp_course.classroom import gradebook, grading
from amp_course.classroom.folder import ClassFolder, create
from amp_course.classroom.names import printable
from amp_course.classroom.report import report
from amp_course.classroom.report_page import FLAG, index, page, table
from amp_course.kit.errors import CourseError
from amp_course.kit.files import write_text


def init(folder: str, chapters: Sequence[str]) -> None:
    """Make a class's folder, or add chapters to one."""
    for line in create(Path(folder), chapters):
        print(line, flush=True)
    print(f"{folder}/README.md says what goes where.")


def grade(folder: str, chapters: Sequence[str], jobs: int | None, again: bool) -> None:
    """Grade what was submitted, and print a line on each submission and a table of them all."""
    place = ClassFolder(Path(folder))
    echo = functools.partial(print, flush=True)
    try:
        results = grading.grade(place, place.chapters(chapters), jobs=jobs, again=again, echo=echo)
    except KeyboardInterrupt:
        print("\nInterrupted. What was graded is kept: type the command again to go on.")
        raise
    for assignment in dict.fromkeys(result.assignment for result in results):
        print(f"\n{_table([result for result in results if result.assignment == assignment])}")
    if any(not result.sandboxed for result in results):
        print(
            "\nWITHOUT A SANDBOX: these submissions ran with your rights. The first line says why."
        )
    if results:
        print(
            f"\nThe points are in {place.gradebook}. `amp-course classroom report {folder}` makes "
            f"the class's page."
        )


def make_report(folder: str, chapters: Sequence[str]) -> None:
    """Write the class's pages."""
    place = ClassFolder(Path(folder))
    names, target, reports = place.names(), place.root / "report", []
    wanted = place.chapters(chapters)
    loaded = [(chapter, grading.load(place, chapter)) for chapter in place.chapters()]
    graded = [(chapter, results) for chapter, results in loaded if results]
    if not any(chapter in wanted for chapter, _ in graded):
        raise CourseError(
            f"nothing has been graded in {folder} yet: `amp-course classroom grade {folder}` comes "
            f"first."
        )
    target.mkdir(exist_ok=True)
    for chapter, results in graded:
        found = report(chapter, results, names, gradebook.given_by_hand(place.root, chapter.stem))
        reports.append(found)
        if chapter in wanted:
            write_text(target / f"{chapter.stem}.html", page(found, projected=False))
            write_text(target / f"{chapter.stem}-projected.html", page(found, projected=True))
            # Excel recognizes UTF-8 by the mark
            write_text(target / f"{chapter.stem}.csv", f"\ufeff{table(found)}")
    write_text(target / "index.html", index(reports))
    print(f"Open {target / 'index.html'}. The pages called …-projected.html name no student.")


def _table(results: Sequence[grading.Result]) -> str:
    """Return the results of one assignment as a table in plain text."""
    signs = {"correct": "✓", "not yet": "✗", "not attempted": "○"}
    names = [answer.exercise.split(".")[1] for answer in results[0].answers]
    width = min(32, max(len("student"), *(len(result.student) for result in results)))
    lines = [f"{'student':<{width}}  points  {' '.join(map(str, range(1, len(names) + 1)))}"]
    for result in results:
        marks = ""
        for number, answer in enumerate(result.answers, 1):
            withheld = answer.state == "correct" and not answer.points
            sign = "!" if withheld else signs.get(answer.state, "–")
            marks += sign.ljust(len(str(number)) + 1)
        points = f"{result.points:>6g}{FLAG if result.withheld else ' '}"
        lines.append(f"{printable(result.student)[:width]:<{width}}  {points} {marks}".rstrip())
    key = ", ".join(f"{number} {name}" for number, name in enumerate(names, 1))
    words = "✓ solved, ✗ not yet, ○ not attempted, – no verdict, ! points withheld"
    return "\n".join([*lines, f"{words}, {FLAG} for you to review; {key}"])
