"""Read what a student submitted without running it, and repair it for grading.

Missing, changed and duplicate cells would stop nbgrader for the whole class. Here they become
sentences for the instructor: the assignment's cells are put back, and every answer found counts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from amp_course.classroom.assignment import TEST
from amp_course.classroom.names import whole_letters
from amp_course.kit.errors import cause_and_fix

LIMIT = 20 * 2**20  # bytes of a notebook, and of all that comes with it
_HELP = re.compile(r"^[ \t]*exercises\.(\w+)\.(hint|solution)\(\)", re.MULTILINE)


class Unreadable(Exception):
    """What was submitted is no notebook; the message says what it is."""


@dataclass(frozen=True)
class Submission:
    """What is run for a student.

    book:     the notebook, repaired; its cells with points have nbgrader's metadata
    findings: what an instructor may want to know of it
    suspect:  if its code names the class's gradebook
    history:  exercise's id → {"attempts", "hints", "solution", "mistakes"}, from the outputs
    """

    book: NotebookNode
    findings: tuple[str, ...]
    suspect: bool
    history: dict[str, dict[str, Any]]


def read(path: Path) -> NotebookNode:
    """Read a notebook. Raises Unreadable for anything else, and for every link."""
    for place in (path.parent.parent, path.parent, path):
        if place.is_symlink():
            raise Unreadable(f"{place.name} is a link to another place: put a copy there instead")
    if path.is_dir():
        raise Unreadable(f"{path.name} is a folder")
    if not path.exists():
        there = [path.parent.name]
        if path.parent.is_dir():
            there = sorted(one.name for one in path.parent.iterdir())[:5]
        instead = f"but {', '.join(there)}" if there else "and nothing else"
        raise Unreadable(f"there is no {path.name}, {instead}")
    if not path.is_file():
        raise Unreadable(f"{path.name} is not a file")
    size = sum(one.lstat().st_size for one in path.parent.rglob("*") if not one.is_dir())
    if size > LIMIT:
        raise Unreadable(
            f"it is {size / 2**20:.0f} MB, with the files next to it; {LIMIT / 2**20:.0f} MB is "
            "the limit"
        )
    try:
        found = json.loads(path.read_bytes().removeprefix(b"\xef\xbb\xbf"))  # in UTF-8, 16 or 32
    except UnicodeDecodeError:
        raise Unreadable(f"{path.name} is not a text file") from None
    except (ValueError, RecursionError):
        what = "is empty" if not path.stat().st_size else "does not hold JSON, as a notebook does"
        raise Unreadable(f"{path.name} {what}") from None
    except OSError as error:
        raise Unreadable(f"{path.name} cannot be read: {cause_and_fix(error)[0]}") from None
    try:
        cells = [_clean(cell) for cell in found["cells"]]
    except Exception:  # JSON may be anything
        raise Unreadable(f"{path.name} holds JSON, but not a notebook") from None
    version = _mapping(_mapping(found.get("metadata")).get("amp_course"))
    return nbformat.from_dict(
        {"cells": cells, "metadata": {"amp_course": version}, "nbformat": 4, "nbformat_minor": 5}
    )


def prepare(submitted: NotebookNode, release: NotebookNode) -> Submission:
    """Put the assignment's own cells back, keep the student's,
    and place each check where its answer is defined.
    """
    findings = list(_versions(submitted, release))
    cells = _recognised(submitted.cells, release)
    names = [_name(cell) for cell in cells]
    code = {_name(cell): cell for cell in release.cells if cell.cell_type == "code"}
    answers = [
        name for name, cell in code.items() if cell.metadata.get("nbgrader", {}).get("solution")
    ]
    for cell in cells:
        if _name(cell) in code and cell.cell_type != "code":
            findings.append(f"the cell {_name(cell)} was a text cell; it was run as code")
            cell.update(nbformat.v4.new_code_cell(cell.source, metadata=cell.metadata))
    for name in code:
        if names.count(name) > 1 and name in answers:
            findings.append(
                f"the cell {name} appears {names.count(name)} times; the last one above its check "
                "counts"
            )
    for cell in cells:
        if _is_points(cell) and _lines(cell) != _lines(code[_name(cell)]):
            findings.append(f"the cell {_name(cell)} was changed; the assignment's was used")
    missing = [cell for name, cell in code.items() if name not in names and name not in answers]
    lost = [*(_name(cell) for cell in missing), *(name for name in answers if name not in names)]
    if lost and not set(names) & set(code):
        findings.append("none of its cells is from this assignment: is it another notebook?")
    elif lost:
        findings.append(f"cells of the assignment were missing: {', '.join(lost)}")
    _put_back(cells, missing, [_name(cell) for cell in release.cells])
    points = [cell for cell in code.values() if _is_points(cell)]
    places = {_name(cell): _place(cells, cell) for cell in points}
    order: list[NotebookNode] = []
    for number, cell in enumerate(cells):
        if not _is_points(cell):
            order.append(cell)
        order += [_copy(one) for one in points if places[_name(one)] == number]
    marks = {_name(cell): cell.metadata for cell in release.cells if "nbgrader" in cell.metadata}
    book = nbformat.v4.new_notebook(cells=_marked(order, marks), metadata=dict(release.metadata))
    suspect = any("gradebook.db" in cell.source for cell in order if cell.cell_type == "code")
    return Submission(book, tuple(findings), suspect, _history(submitted))


def _recognised(cells: list[NotebookNode], release: NotebookNode) -> list[NotebookNode]:
    """Return copies of cells, with the assignment's cells under its names.

    They are recognized by nbgrader's mark, by id or by text: each is dropped by some editors.
    """
    names = {_name(cell) for cell in release.cells if cell.cell_type == "code"}
    by_id = {name.replace("_", "-"): name for name in names} | {name: name for name in names}
    by_text = {_lines(cell): _name(cell) for cell in release.cells if cell.cell_type == "code"}
    marked = {_name(cell) for cell in cells}
    found = []
    for cell in map(_copy, cells):
        if _name(cell) not in names:
            name = by_id.get(cell.get("id", "")) or (
                by_text.get(_lines(cell)) if cell.cell_type == "code" else None
            )
            if name is not None and name not in marked:
                cell.metadata["nbgrader"] = {"grade_id": name}
        found.append(cell)
    return found


def _lines(cell: NotebookNode) -> tuple[str, ...]:
    return tuple(line.rstrip() for line in cell.source.strip().splitlines())


def _clean(cell: Any) -> NotebookNode:
    """Keep what grading needs of a cell: kind, source, name, and what checks have output."""
    kind = cell["cell_type"]
    source = cell.get("source", "")
    source = source if isinstance(source, str) else "".join(map(str, source))
    mark = _mapping(_mapping(cell.get("metadata")).get("nbgrader"))
    grade_id = mark.get("grade_id")
    metadata: dict[str, Any] = {}
    if isinstance(grade_id, str):
        metadata["nbgrader"] = {"grade_id": grade_id}
    name = cell.get("id") if isinstance(cell.get("id"), str) else ""
    source = whole_letters(source.replace("\r\n", "\n"))
    if kind != "code":
        made = nbformat.v4.new_markdown_cell(source, metadata=metadata)
    else:
        outputs = map(_mapping, cell.get("outputs") or [])
        checks = [_mapping(_mapping(one.get("metadata")).get("amp_course")) for one in outputs]
        metadata["amp_course"] = [check for check in checks if check]
        made = nbformat.v4.new_code_cell(source, metadata=metadata)
    made.id = name
    return made


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _name(cell: NotebookNode) -> str:
    """Return the assignment's name of a cell: nbgrader's mark, else the cell's id."""
    return str(cell.metadata.get("nbgrader", {}).get("grade_id") or cell.get("id", ""))


def _is_points(cell: NotebookNode) -> bool:
    return cell.cell_type == "code" and _name(cell).startswith(TEST)


def _versions(submitted: NotebookNode, release: NotebookNode) -> Iterator[str]:
    mine, theirs = (_mapping(book.metadata.get("amp_course")) for book in (release, submitted))
    if theirs.get("digest") not in (None, mine.get("digest")):
        version = str(theirs.get("version", "unknown"))[:20]
        yield (
            f"it was made from another version of the assignment (version {version} of the "
            "course); it is graded by the one in release/"
        )


def _put_back(cells: list[NotebookNode], missing: list[NotebookNode], order: list[str]) -> None:
    """Insert each missing cell before the first one that comes later in the assignment."""
    for one in missing:
        later = set(order[order.index(_name(one)) + 1 :])
        place = next(
            (number for number, cell in enumerate(cells) if _name(cell) in later), len(cells)
        )
        cells.insert(place, _copy(one))


def _place(cells: list[NotebookNode], points: NotebookNode) -> int:
    """Return the number of the cell after which a check belongs: where the student had it, unless
    the answer comes later.
    """
    places = [number for number, cell in enumerate(cells) if _name(cell) == _name(points)]
    answers = [
        number
        for number, cell in enumerate(cells)
        if _name(cell) == _name(points).removeprefix(TEST)
    ]
    if answers and places[-1] < answers[0]:
        return answers[-1]
    return places[-1] if answers else len(cells) - 1  # any cell may define the name


def _copy(cell: NotebookNode) -> NotebookNode:
    return nbformat.from_dict({**cell, "metadata": dict(cell.metadata)})


def _marked(cells: list[NotebookNode], marks: dict[str, Any]) -> list[NotebookNode]:
    """Give every cell an id of its own, and each of the assignment's nbgrader marks to one cell: of
    an answer's copies to the last one above its check, or the last one.
    """
    bearers: dict[str, int] = {}
    checked = {
        _name(cell).removeprefix(TEST): number
        for number, cell in enumerate(cells)
        if _is_points(cell)
    }
    for number, cell in enumerate(cells):
        name = _name(cell)
        if name not in bearers or number < checked.get(name, len(cells)):
            bearers[name] = number
    for number, cell in enumerate(cells):
        name = _name(cell)
        cell.metadata = nbformat.from_dict(
            dict(marks[name]) if name in marks and bearers[name] == number else {}
        )
        cell.id = f"cell-{number}"
    return cells


def _history(submitted: NotebookNode) -> dict[str, dict[str, Any]]:
    """Collect how each answer came about. The student's machine wrote it, so only the report uses
    it.
    """
    found: dict[str, dict[str, Any]] = {}
    code = [cell for cell in submitted.cells if cell.cell_type == "code"]
    for check in (check for cell in code for check in cell.metadata.get("amp_course", [])):
        nothing: dict[str, Any] = {"attempts": 0, "hints": 0, "solution": False, "mistakes": {}}
        history = found.setdefault(str(check.get("exercise"))[:80], nothing)
        for what in ("attempts", "hints"):
            history[what] = max(history[what], _count(check.get(what)))
        history["solution"] |= check.get("solution") is True
        mistakes = history["mistakes"]
        for name, times in _mapping(check.get("mistakes")).items():
            if _count(times):
                mistakes[name] = max(mistakes.get(name, 0), times)
    for cell in code:  # a call that is still there, run or not
        for name, what in _HELP.findall(cell.source):
            for history in (one for key, one in found.items() if key.endswith(f".{name}")):
                history["hints"] = max(history["hints"], what == "hint")
                history["solution"] |= what == "solution"
    return found


def _count(value: Any) -> int:
    return value if type(value) is int else 0
