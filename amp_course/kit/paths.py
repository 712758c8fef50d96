"""Find the course's folder and the learner's. Creates nothing."""

import os
from pathlib import Path

from amp_course.kit.errors import CourseError


def course_root() -> Path:
    """Return the folder that holds `notebooks/` and `exercises/`.

    It is `AMP_COURSE_ROOT` if that is set; else the clone that the package is in; else the nearest
    such folder upward from the current one. Raises CourseError if there is none.
    """
    named = os.environ.get("AMP_COURSE_ROOT")
    if named:
        root = Path(named).expanduser().resolve()
        if not (root / "notebooks").is_dir():
            raise CourseError(
                f"AMP_COURSE_ROOT is {named}, which has no folder notebooks/: set it to the folder "
                "where you cloned the course, or unset it."
            )
        return root
    clone = Path(__file__).resolve().parents[2]
    if (clone / "notebooks").is_dir():
        return clone
    here = Path.cwd()
    for folder in (here, *here.parents):
        # Many projects have a folder notebooks/; with exercises/ next to it, it is the course.
        if (folder / "notebooks").is_dir() and (folder / "exercises").is_dir():
            return folder
    raise CourseError(
        f"no folder with the course's notebooks was found from {here} upward: run this in the "
        "folder where you cloned the course, or set AMP_COURSE_ROOT to that folder."
    )


def newest_record(benchmark: str) -> Path:
    """Return the newest record of a benchmark in benchmarks/results. Example: "survival" →
    …/survival-cpu-amd-epyc-2026-11-21.json

    Raises CourseError if there is none, with the command that makes one.
    """
    found = (course_root() / "benchmarks" / "results").glob(f"{benchmark}-*.json")
    path = max(found, key=lambda file: file.name[-15:], default=None)
    if path is None:
        raise CourseError(
            f"benchmarks/results has no record of {benchmark}: make one with `python -m "
            f"benchmarks.{benchmark}` (some minutes)."
        )
    return path


def work_dir() -> Path:
    """Return the learner's folder: `AMP_COURSE_WORK` if that is set,
    else `my_work/` in the course's folder; it need not exist.
    """
    named = os.environ.get("AMP_COURSE_WORK")
    return (Path.cwd() / Path(named).expanduser()).resolve() if named else course_root() / "my_work"
