"""The stamp of a notebook: what its stored outputs came from, to find out if that has changed.

    metadata.amp_course = {"version": "0.1.0", "torch": "2.13.0", "modules": ["amp_course.bits", …],
    "digest": "9f86d0…"}

The digest covers the code cells, every module of the course that was loaded after the last cell,
and the pinned versions of the packages whose results a cell shows. Prose, and comments in modules,
change neither outputs nor digest.
"""

from __future__ import annotations

import hashlib
import io
import tokenize
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from nbformat import NotebookNode

from amp_course import __version__
from amp_course.kit.paths import course_root

KEY = "amp_course"
PACKAGES = ("ipywidgets", "matplotlib", "numpy", "scikit-learn", "scipy", "torch")

# Runs as a notebook's last cell, which is not stored: prints what the kernel has loaded.
REPORT = """\
import importlib.metadata, json, sys
print(json.dumps({
    "torch": importlib.metadata.version("torch").partition("+")[0],
    "modules": sorted(name for name in sys.modules if name.partition(".")[0] == "amp_course"),
}))
"""


def stamp(book: NotebookNode, torch: str, modules: list[str]) -> None:
    """Write the stamp of a notebook that has just run with these modules loaded."""
    book.metadata[KEY] = {
        "version": __version__,
        "torch": torch,
        "modules": modules,
        "digest": digest(book, modules),
    }


def problem(book: NotebookNode) -> str | None:
    """Say why a notebook's stored outputs may be out of date, or return None."""
    found = book.metadata.get(KEY)
    if found is None:
        return "it has no stamp that says what its outputs came from"
    if (found["version"], found["torch"]) != (__version__, pins()["torch"]):
        return f"its outputs came from version {found['version']} and torch {found['torch']}"
    if found["digest"] != digest(book, found["modules"]):
        return "its code or that of the course has changed since it was run"
    return None


def digest(book: NotebookNode, modules: Iterable[str]) -> str:
    """Return the SHA-256, in hex, of all that the outputs depend on."""
    parts = [cell.source for cell in book.cells if cell.cell_type == "code"]
    parts += [f"{name} {_module_digest(course_root(), name)}" for name in sorted(modules)]
    parts += [f"{name}=={pins()[name]}" for name in PACKAGES]
    return _sha256("\0".join(parts))


def pins() -> dict[str, str]:
    """Return the pinned version of each package: {"torch": "2.13.0", …}."""
    lines = (course_root() / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line.split(";")[0] for line in lines if "==" in line and not line.startswith("#")]
    pairs = (pin.split("==") for pin in pins)
    return {name.strip().lower(): version.strip() for name, version in pairs}


@cache
def _module_digest(root: Path, name: str) -> str:
    path = root.joinpath(*name.split("."))
    for source in (path.with_suffix(".py"), path / "__init__.py"):
        if source.is_file():
            return _sha256(without_comments(source.read_text(encoding="utf-8")))
    return "gone"


def without_comments(code: str) -> str:
    """Return the code without its comments and the lines that held nothing else."""
    lines = code.split("\n")
    commented = {
        token.start
        for token in tokenize.generate_tokens(io.StringIO(code).readline)
        if token.type == tokenize.COMMENT
    }
    for row, column in commented:
        lines[row - 1] = lines[row - 1][:column].rstrip()
    emptied = {row for row, _ in commented if not lines[row - 1]}
    return "\n".join(line for row, line in enumerate(lines, 1) if row not in emptied)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
