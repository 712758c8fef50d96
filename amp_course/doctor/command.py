"""The command `amp-course doctor`: examine a script, print what was found, write a page."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from amp_course.doctor.script import examine_script
from amp_course.kit.errors import CourseError
from amp_course.kit.files import write_text

_INTERRUPTED = "Interrupted: the script is ended"
_FILES = ", and the files that it changed are as they were before"


def examine(
    script: str,
    args: Sequence[str],
    *,
    as_json: bool,
    html: str | None,
    force: bool,
    steps: int,
    keep_files: bool,
    **options: Any,
) -> int:
    """Examine a script or a module and print what was found; return the exit code.

    options: of `examine_script`

    0: no fault, 1: a fault, 2: it could not run, or ran too briefly to judge, 130: interrupted.
    Raises CourseError for a script that is not there and for an HTML file that cannot be written,
    before anything runs.
    """
    page = Path(html) if html else None
    if page and page.exists() and not force:
        raise CourseError(
            f"{page} already exists: choose another name, or add --force to replace it."
        )
    if page and not page.parent.is_dir():
        raise CourseError(
            f"there is no folder {page.parent} to write {page.name} into: make it first."
        )
    clear = "\r\x1b[K" if sys.stderr.isatty() else ""
    code, found, progress = 130, None, _progress(steps) if clear else None
    try:
        found = examine_script(
            script, args, steps=steps, keep_files=keep_files, progress=progress, **options
        )
        code = found.exit_code
    except KeyboardInterrupt as error:
        found = getattr(error, "report", None)
    print(clear, end="", file=sys.stderr, flush=True)
    if found is not None:
        print(found.to_json() if as_json else found)
    if code == 130:
        print(f"{_INTERRUPTED}{'' if keep_files else _FILES}.", file=sys.stderr)
    elif page is not None and found is not None:
        write_text(page, found.to_html())
    return code


def _progress(steps: int) -> Callable[[int], None]:
    """Return a function that shows the script's progress on one line of the terminal."""
    began = time.monotonic()

    def show(updates: int) -> None:
        seconds = time.monotonic() - began
        line = f"\r\x1b[K{updates} of {steps} updates, {seconds:.0f} s"
        print(line, end="", file=sys.stderr, flush=True)

    return show
