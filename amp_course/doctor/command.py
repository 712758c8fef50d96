"""The command `amp-course doctor`: examine a script, print the page, and write it as HTML where that is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from amp_course.doctor.script import examine_script
from amp_course.kit.errors import CourseError
from amp_course.kit.files import write_text


def examine(
    script: str, args: Sequence[str], *, as_json: bool, html: str | None, force: bool, steps: int, seconds: float,
    keep_files: bool, ranks: int,
) -> int:  # fmt: skip
    """Examine a script and print what was found; return the exit code: 0 clean, 1 a fault, 2 it could not run.

    Raises CourseError for a script that is not there and for an HTML file that cannot be written, before anything runs.
    """
    page = Path(html) if html else None
    if page is not None:
        if page.exists() and not force:
            raise CourseError(f"{page} already exists: choose another name, or add --force to replace it.")
        if not page.parent.is_dir():
            raise CourseError(f"there is no folder {page.parent} to write {page.name} into: make it first.")
    diagnosis = examine_script(script, args, steps=steps, seconds=seconds, keep_files=keep_files, ranks=ranks)
    print(diagnosis.to_json() if as_json else diagnosis)
    if page is not None:
        write_text(page, diagnosis.to_html())
    return diagnosis.exit_code
