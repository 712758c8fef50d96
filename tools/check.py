"""Run every check of the course that needs no GPU, the quick ones first; stop where one fails.

`make test` runs this in .venv. Names of parts choose some: `make test ARGS="ruff unit"`. What takes
longest runs only if it is named, `make test ARGS="slow solutions"` or `make test-classroom`;
`.ci/run` does all of it.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NBVAL = [
    "--nbval-current-env",
    "--nbval-cell-timeout=240",
    "--timeout=600",
    "-p",
    "no:cacheprovider",
]
NBVAL += ["-p", "tests.notebooks.kernel_start", "--dist", "loadfile", "--no-loadscope-reorder"]
LONGEST = [
    f"notebooks/{stem}.ipynb"
    for stem in ("10_distributed", "09_speed", "12_frontiers", "11_debugging")
]


def pytest(*arguments: str) -> list[str]:
    """Return the arguments for pytest in two processes, which do without nbval, slow to import,
    unless they ask for it.
    """
    without = [] if "--nbval" in arguments or "--nbval-lax" in arguments else ["-p", "no:nbval"]
    return ["-m", "pytest", "-n", "2", *without, *arguments]


# name → what it checks, and the arguments for Python. These take one core and seconds: two run at a
# time.
QUICK = {
    "mypy": ("types", ["-m", "mypy"]),
    "ruff": ("faults that a linter sees", ["-m", "ruff", "check", "."]),
    "format": ("layout of the code", ["-m", "ruff", "format", "--check", "--quiet", "--diff", "."]),
    "imports": (
        "who imports whom",
        ["-c", "from importlinter.cli import lint_imports_command as main; main()"],
    ),
    "authoring": (
        "solutions/ and exercises/ are what their sources make",
        ["-m", "amp_course.authoring", "check"],
    ),
}
# These keep both cores busy, one part after the other. A notebook's cells stay together, the long
# notebooks come first.
PARTS = {
    "unit": (
        "the package, its exercises and its tools",
        pytest("-q", "--dist", "worksteal", "-m", "not browser and not slow and not classroom"),
    ),
    "notebooks": (
        "each cell shows what is stored",
        pytest("-q", "--nbval", *NBVAL, *LONGEST, "notebooks"),
    ),
    "exercises": (
        "an untouched exercise runs to its end",
        pytest("-q", "--nbval-lax", *NBVAL, "exercises"),
    ),
    "browser": (
        "the reader's way in JupyterLab, and a look at every panel",
        pytest("-q", "--dist", "worksteal", "-m", "browser and not slow", "-rs", "tests/browser"),
    ),
}
ON_DEMAND = {
    "slow": (
        "benchmarks, whole trainings, real processes, each panel in JupyterLab",
        # Three, for many wait for time to pass; by file, for its tests share what takes long to
        # make
        pytest("-q", "-n", "3", "--dist", "loadfile", "-m", "slow and not classroom"),
    ),
    "solutions": (
        "each cell of the solutions shows what is stored",
        pytest("-q", "--nbval", *NBVAL, "solutions"),
    ),
    "classroom": (
        "a class of thirty, graded",
        ["-m", "pytest", "-q", "-m", "classroom", "tests/classroom"],
    ),
}

# A busy machine disturbs their processes, browsers and time limits: what fails is run once more,
# alone. More tests than MOST fail for another reason.
AGAIN, MOST = ("unit", "slow", "browser"), 10

# pytest's lines of dots, which are as many as the tests, and what pytest-xdist says before them
DOTS = re.compile(r"[.sxXFE]+ *(\[ *\d+%\])?|bringing up nodes\.\.\.")


def run(
    arguments: list[str], environment: dict[str, str], hold: bool = False
) -> tuple[int, float, str]:
    """Run Python with the arguments; return its exit code, its seconds,
    and what it printed if that is to be held back.
    """
    start = time.monotonic()
    held = {
        "cwd": ROOT,
        "env": environment,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.STDOUT,
        "text": True,
    }
    with subprocess.Popen([sys.executable, *arguments], errors="replace", **held) as process:
        printed = process.stdout.read() if hold else show(process.stdout)
    return process.returncode, time.monotonic() - start, printed


def show(lines: Iterable[str]) -> str:
    """Print lines as they come, those of dots as a percentage that moves on,
    and nowhere but on a terminal.
    """
    moving = ""
    for line in lines:
        dots = DOTS.fullmatch(line.rstrip())
        if not dots:
            print("\r" * bool(moving) + line, end="", flush=True)
            moving = ""
        elif dots[1] and sys.stdout.isatty():
            moving = dots[1]
            print(f"\r{moving}", end="", flush=True)
    return ""


def run_twice(
    arguments: list[str], environment: dict[str, str], cache: Path
) -> tuple[int, float, str]:
    """Run a part, and what failed once more, alone; return exit code, seconds,
    and what passed then.
    """
    arguments = [*arguments, "-o", f"cache_dir={cache}"]
    code, seconds, _ = run(arguments, environment)
    noted = cache / "v" / "cache" / "lastfailed"
    failed = list(json.loads(noted.read_text())) if code == 1 and noted.exists() else []
    if not 0 < len(failed) <= MOST:
        return code, seconds, ""
    print(f"== once more, alone: {', '.join(failed)}", flush=True)
    code, more, _ = run(
        [*arguments, "-n", "0", "--last-failed", "--last-failed-no-failures", "none"], environment
    )
    return (
        code,
        seconds + more,
        "" if code else f", passed only when run alone: {', '.join(failed)}",
    )


def run_all(
    names: list[str], environment: dict[str, str], scratch: Path
) -> tuple[list[str], list[str]]:
    """Run the named parts until one fails; return a line on each that ran,
    and the names of those that failed.
    """
    lines, failed, began = [], [], time.monotonic()

    def note(name: str, code: int, seconds: float, more: str = "") -> None:
        lines.append(f"{name} {seconds:.0f} s{more}")
        if code:
            failed.append(name)

    with ThreadPoolExecutor(2) as pool:
        futures = {
            pool.submit(run, QUICK[name][1], environment, hold=True): name
            for name in QUICK
            if name in names
        }
        for future in as_completed(futures):
            code, seconds, printed = future.result()
            name = futures[future]
            print(
                f"== {name}: {QUICK[name][0]} ({seconds:.0f} s)\n{printed if code else ''}",
                end="",
                flush=True,
            )
            note(name, code, seconds)
    parts = {name: part for name, part in (PARTS | ON_DEMAND).items() if name in names}
    for number, (name, (what, arguments)) in enumerate(parts.items(), 1):
        if failed:
            break
        print(
            f"== {name}: {what} ({number} of {len(parts)}, {time.monotonic() - began:.0f} s so "
            f"far)",
            flush=True,
        )
        if name in AGAIN:
            note(name, *run_twice(arguments, environment, scratch / name))
        else:
            note(name, *run(arguments, environment)[:2])
    return lines, failed


def main(names: list[str]) -> int:
    """Run the named parts, or all but those on demand; return 0 if none failed."""
    known = [*QUICK, *PARTS, *ON_DEMAND]
    unknown = set(names) - set(known)
    if unknown:
        print(
            f"There is no part named {', '.join(sorted(unknown))}; the parts are "
            f"{', '.join(known)}.",
            file=sys.stderr,
        )
        return 2
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        # The reader's copies and progress are not the tests' to touch. Two processes run tests, so
        # each gets one thread: more threads than cores make small ops many times as slow.
        # Every kernel and every rank would compile the course again if Python might not keep what
        # it has compiled.
        environment = {
            name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
        }
        environment |= {"AMP_COURSE_WORK": str(Path(scratch, "my_work")), "OMP_NUM_THREADS": "1"}
        lines, failed = run_all(names or [*QUICK, *PARTS], environment, Path(scratch))
    verdict = f"FAILED in {' and '.join(failed)}" if failed else "All passed"
    print(f"\n{verdict}: {', '.join(lines)}; {time.monotonic() - start:.0f} s in all.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
