"""The command `amp-course doctor`: examine a script, print the page, and write it as HTML where that is asked for."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from amp_course.doctor.script import examine_script
from amp_course.kit.errors import CourseError
from amp_course.kit.files import write_text

_INTERRUPTED = "Interrupted: the script is ended, and the files that it changed are as they were before."


def examine(
    script: str, args: Sequence[str], *, module: bool, as_json: bool, html: str | None, force: bool, steps: int,
    seconds: float, keep_files: bool, ranks: int,
) -> int:  # fmt: skip
    """Examine a script or a module and print what was found; return the exit code.

    0: no fault, 1: a fault, 2: it could not run, or too little of it was seen, 130: interrupted. Raises CourseError for a script
    that is not there and for an HTML file that cannot be written, before anything runs.
    """
    page = Path(html) if html else None
    if page is not None:
        if page.exists() and not force:
            raise CourseError(f"{page} already exists: choose another name, or add --force to replace it.")
        if not page.parent.is_dir():
            raise CourseError(f"there is no folder {page.parent} to write {page.name} into: make it first.")
    shows = sys.stderr.isatty()
    try:
        diagnosis = examine_script(
            script, args, module=module, steps=steps, seconds=seconds, keep_files=keep_files, ranks=ranks,
            progress=_progress(steps) if shows else None,
        )  # fmt: skip
    except KeyboardInterrupt as error:
        seen = getattr(error, "report", None)
        if seen is not None:
            print("\r\x1b[K" * shows, end="", file=sys.stderr, flush=True)
            print(seen.to_json() if as_json else seen)
        print("\r\x1b[K" * shows + (_INTERRUPTED.split(",")[0] + "." if keep_files else _INTERRUPTED), file=sys.stderr)
        return 130
    if shows:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    print(diagnosis.to_json() if as_json else diagnosis)
    if page is not None:
        write_text(page, diagnosis.to_html())
    return diagnosis.exit_code


def _progress(steps: int) -> Callable[[int], None]:
    """Return a function that shows on one line of the terminal how far the script has come."""
    began = time.monotonic()

    def show(updates: int) -> None:
        seconds = time.monotonic() - began
        print(f"\r\x1b[K{updates} of {steps} updates, {seconds:.0f} s", end="", file=sys.stderr, flush=True)

    return show
