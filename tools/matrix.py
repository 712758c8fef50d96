"""Run the tests on every Python and torch that the course promises and this machine has; print a
table of what passed.

    make test-matrix                            every cell whose Python is on this machine
    make test-matrix ARGS="--list"              the cells, and which of them can run here
    make test-matrix ARGS="--only lowest avx2"   some of them
    make test-matrix ARGS="--write"             put the table into docs/machines.md as well

Each cell gets a fresh environment and a fresh copy of the files that git knows. A cell that cannot
run says why, and counts neither as passed nor as failed. The CPU build of torch is not on PyPI for
Linux: give its index with TORCH_INDEX, or pip installs the build with CUDA there too; the table
       names the build that was really tested.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "machines.md"
PARTS = (
    "unit",
    "notebooks",
    "exercises",
    "slow",
    "solutions",
)  # the browser needs no torch of its own: `make test` runs it once
DRAWS = {"AMP_COURSE_DRAWS": "20"}  # of each exercise's cases; `make test` draws fewer
AVX2 = {
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "ATEN_CPU_CAPABILITY": "avx2",
}  # as a laptop without avx512 and bf16 units


@dataclass(frozen=True)
class Cell:
    """One machine to try: a Python, a torch, a build of it, and what the CPU may use.

    python: "3.11", the newest patch found, or an exact one, "3.11.2"
    build:  "cpu", or "cuda": what pip installs on Linux unless told otherwise, here without a
            driver
    """

    name: str
    python: str
    torch: str
    build: str
    avx2: bool = False


CELLS = (
    Cell("lowest", "3.11.2", "2.13.0", "cpu"),
    Cell("plain", "3.11", "2.13.0", "cpu"),
    Cell("avx2", "3.11", "2.13.0", "cpu", avx2=True),
    Cell("cuda", "3.11", "2.13.0", "cuda"),
    Cell("cuda-avx2", "3.12", "2.13.0", "cuda", avx2=True),
    Cell("oldest-torch", "3.11", "2.7.0", "cuda"),
    Cell("newest-torch", "3.13", "2.15.0", "cuda"),
)

HEAD = ("cell", "Python", "torch", "CPU", "passed", "failed", "skipped", "seconds", "day")


def main(arguments: list[str] | None = None) -> int:
    """Run the cells asked for; return 1 if a test failed or an environment could not be made."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n")[0], prog="make test-matrix"
    )
    parser.add_argument("--list", action="store_true", help="show the cells and run nothing")
    parser.add_argument("--only", nargs="+", metavar="CELL", help="run these cells")
    parser.add_argument(
        "--parts",
        nargs="+",
        default=PARTS,
        metavar="PART",
        help="parts of `make test`, or pytest paths",
    )
    parser.add_argument(
        "--torch-index", default="", help="the package index with the CPU build of torch"
    )
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="make the environments here and keep them"
    )
    parser.add_argument(
        "--write", action="store_true", help=f"put the table into {PAGE.relative_to(ROOT)}"
    )
    options = parser.parse_args(arguments)
    unknown = set(options.only or ()) - {cell.name for cell in CELLS}
    if unknown:
        parser.error(
            f"no cell {', '.join(sorted(unknown))}; there are "
            f"{', '.join(cell.name for cell in CELLS)}"
        )
    cells = [cell for cell in CELLS if not options.only or cell.name in options.only]
    if options.list:
        for cell in cells:
            found = find_python(cell.python) or "no such Python here"
            print(f"{cell.name:<14}{describe(cell):<44}{found}")
        return 0
    rows, failed = [], False
    for cell in cells:
        row, sound = run_cell(cell, options)
        rows.append(row)
        failed |= not sound
        print(f"\n{table(rows)}", flush=True)
    if options.write:
        write_page(rows)
    return int(failed)


def describe(cell: Cell) -> str:
    """Say in words what a cell is."""
    return (
        f"Python {cell.python}, torch {cell.torch} {cell.build}{', AVX2 only' if cell.avx2 else ''}"
    )


def find_python(wanted: str) -> str | None:
    """Return the path of a Python of this version ("3.12", or exactly "3.11.2"), or None."""
    short = ".".join(wanted.split(".")[:2])
    folders = [*os.environ.get("PATH", "").split(os.pathsep), "/usr/bin", "/usr/local/bin"]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [*sorted(pyenv.glob(f"{short}*/bin/python3"), reverse=True)]
    candidates += [
        Path(folder, name) for folder in folders for name in (f"python{short}", "python3")
    ]
    ask = "import sys; print('.'.join(map(str, sys.version_info[:3])))"
    for path in candidates:
        if path.exists():
            said = subprocess.run([path, "-c", ask], capture_output=True, text=True)
            version = said.stdout.strip()
            if said.returncode == 0 and (
                version == wanted or (wanted == short and version.startswith(short + "."))
            ):
                return str(path)
    return None


def run_cell(cell: Cell, options: argparse.Namespace) -> tuple[list[str], bool]:
    """Make the environment of a cell, run the tests in it;
    return its row and whether all is well.
    """
    print(f"\n==== {cell.name}: {describe(cell)}", flush=True)
    python = find_python(cell.python)
    if python is None:
        return [cell.name, cell.python, "not run: no such Python here", *[""] * 6], True
    with tempfile.TemporaryDirectory(prefix="amp_course_matrix_") as scratch:
        tree = (options.keep or Path(scratch)) / cell.name
        copy_tree(tree)
        try:
            installed = install(cell, python, tree, options.torch_index)
        except subprocess.CalledProcessError as error:
            print(error.stdout[-3000:], file=sys.stderr)
            return [
                cell.name,
                cell.python,
                f"{cell.torch} could not be installed",
                *[""] * 6,
            ], False
        environment = (
            os.environ | DRAWS | {"AMP_COURSE_ROOT": str(tree)} | (AVX2 if cell.avx2 else {})
        )
        start = time.monotonic()
        counts, sound = run_tests(tree, options.parts, environment)
        seconds = f"{time.monotonic() - start:.0f}"
        cpu = run([tree / ".venv/bin/python", "-c", CPU], tree, environment).strip()
        if not options.keep:
            shutil.rmtree(tree, ignore_errors=True)
    return [cell.name, *installed, cpu, *map(str, counts), seconds, date.today().isoformat()], sound


CPU = "import torch; print(torch.backends.cpu.get_cpu_capability())"


def copy_tree(target: Path) -> None:
    """Copy the files that git knows, as they stand now."""
    names = run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], ROOT
    ).split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def install(cell: Cell, python: str, tree: Path, torch_index: str) -> list[str]:
    """Make `.venv` in the tree; return the versions of Python and torch that it holds."""
    run([python, "-m", "venv", "--clear", tree / ".venv"], tree)
    inside = tree / ".venv/bin/python"
    pip = [inside, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if cell.build == "cpu":
        run(
            [*pip, *(["--index-url", torch_index] if torch_index else []), f"torch=={cell.torch}"],
            tree,
        )
    else:
        run(
            [*pip, f"torch==={cell.torch}"], tree
        )  # "===": the wheel without a local version, which is PyPI's
    # Other versions of torch need other versions of sympy; without a pin of its own pip would
    # replace torch to suit it.
    pins = re.sub(
        r"^(torch|sympy)==.*\n",
        "",
        (ROOT / "constraints.txt").read_text(encoding="utf-8"),
        flags=re.MULTILINE,
    )
    (tree / "constraints-matrix.txt").write_text(f"{pins}torch=={cell.torch}\n", encoding="utf-8")
    run([*pip, "-c", "constraints-matrix.txt", "-e", ".[test]"], tree)
    ask = (
        "import platform, torch; print(platform.python_version(), torch.__version__, "
        "torch.version.cuda, sep='|')"
    )
    python_version, torch_version, cuda = run([inside, "-c", ask], tree).strip().split("|")
    version = torch_version.split("+")[0]
    return [
        python_version,
        f"{version} CPU" if cuda == "None" else f"{version} CUDA {cuda}, no driver",
    ]


def run_tests(tree: Path, parts: list[str], environment: dict[str, str]) -> tuple[list[int], bool]:
    """Run parts of `make test`, or pytest paths; return how many tests passed,
    failed and were skipped, and if all was well.
    """
    totals, sound = [0, 0, 0], True
    for part in parts:
        pytest = ["-m", "pytest", "-q", "-n", "2", "-m", "not browser", part]
        command = pytest if "/" in part else ["tools/check.py", part]
        process = subprocess.Popen(
            [tree / ".venv/bin/python", *command],
            cwd=tree,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
        )
        failed_before = totals[1]
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            if line.startswith("== once more"):  # only what fails again has failed
                totals[1] = failed_before
            if re.match(r"=*\s*\d+ (passed|failed|skipped|error)", line):
                for index, word in enumerate(("passed", "(?:failed|errors?)", "skipped")):
                    totals[index] += sum(map(int, re.findall(rf"(\d+) {word}\b", line)))
        if process.wait() != 0:
            sound = False
            totals[1] += (
                totals[1] == failed_before
            )  # it ended early, without a count: that is a failure too
    return totals, sound


def run(command: list[str | Path], folder: Path, environment: dict[str, str] | None = None) -> str:
    """Run a command to its end and return what it printed;
    raises CalledProcessError, with that in `stdout`.
    """
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ).stdout


def table(rows: list[list[str]]) -> str:
    """Write the rows as a Markdown table."""
    lines = [HEAD, ["---"] * len(HEAD), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def write_page(rows: list[list[str]]) -> None:
    """Put the rows into the table of docs/machines.md; the rows of other cells stay as they are."""
    text = PAGE.read_text(encoding="utf-8")
    before, old, after = re.split(r"<!-- table -->\n", text)
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in old.splitlines()[2:]]
    kept = {row[0]: row for row in cells}
    merged = kept | {row[0]: row for row in rows}
    ordered = [merged[cell.name] for cell in CELLS if cell.name in merged]
    PAGE.write_text(
        f"{before}<!-- table -->\n{table(ordered)}\n<!-- table -->\n{after}", encoding="utf-8"
    )


if __name__ == "__main__":
    sys.exit(main())
