"""Read what a student submitted without running it, and put it in the order in which it can be graded.

Missing, changed and doubled cells would stop nbgrader for the whole class. Here they become sentences for the instructor,
and what can be graded is graded: a cell that belongs to the assignment is put back, an answer that is there counts.
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

LIMIT = 20 * 2**20  # bytes of a notebook, and of all that comes with it
_HELP = re.compile(r"^\s*exercises\.(\w+)\.(hint|solution)\(\)", re.MULTILINE)


class Unreadable(Exception):
    """What was submitted is no notebook; the message says what it is."""


@dataclass(frozen=True)
class Submission:
    """What is run for a student.

    book:     the notebook, repaired; a cell with points carries the metadata that nbgrader knows it by
    findings: what an instructor may want to know of it
    suspect:  whether its code names the class's gradebook
    history:  exercise's id → {"attempts", "hints", "solution", "mistakes"}, as the notebook's outputs tell it
    """

    book: NotebookNode
    findings: tuple[str, ...]
    suspect: bool
    history: dict[str, dict[str, Any]]


def read(path: Path) -> NotebookNode:
    """Read a notebook of any version. Raises Unreadable for anything else, and for a link, whatever it leads to."""
    for place in (path.parent.parent, path.parent, path):
        if place.is_symlink():
            raise Unreadable(f"{place.name} is a link to another place: put a copy there instead")
    if path.is_dir():
        raise Unreadable(f"{path.name} is a folder")
    if not path.exists():
        there = sorted(one.name for one in path.parent.iterdir())[:5] if path.parent.is_dir() else [path.parent.name]
        raise Unreadable(f"there is no {path.name}" + (f", but {', '.join(there)}" if there else ", and nothing else"))
    if not path.is_file():
        raise Unreadable(f"{path.name} is no file")
    size = sum(one.lstat().st_size for one in path.parent.rglob("*") if not one.is_dir())
    if size > LIMIT:
        raise Unreadable(
            f"it is {size / 2**20:.0f} MB large, with the files next to it; {LIMIT / 2**20:.0f} MB is the limit"
        )
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise Unreadable(f"{path.name} is no text file") from None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        what = "is empty" if not text.strip() else "does not hold JSON, as a notebook does"
        raise Unreadable(f"{path.name} {what}") from None
    try:
        if found.get("nbformat", 0) < 4:
            book = nbformat.convert(nbformat.reads(text, as_version=nbformat.NO_CONVERT), 4)
        else:
            book = nbformat.from_dict(found)
        cells = [_clean(cell) for cell in book.cells]
    except Exception:  # nbformat raises many kinds for what is JSON, but no notebook
        raise Unreadable(f"{path.name} holds JSON, but no notebook") from None
    return nbformat.v4.new_notebook(cells=cells, metadata=dict(_mapping(book.get("metadata"))))


def prepare(submitted: NotebookNode, release: NotebookNode) -> Submission:
    """Put the assignment's own cells back, keep the student's, and place each check where its answer is known."""
    findings = list(_versions(submitted, release))
    own = {_name(cell) for cell in release.cells if cell.cell_type == "code"}
    names = [_name(cell) for cell in submitted.cells]
    for name in sorted({name for name in names if name in own and names.count(name) > 1}):
        findings.append(f"the cell {name} is there {names.count(name)} times; the last one counts")
    changed = {_name(cell): cell.source.strip() for cell in release.cells if _is_points(cell)}
    for cell in submitted.cells:
        if _name(cell) in changed and cell.source.strip() != changed[_name(cell)]:
            findings.append(f"the cell {_name(cell)} was changed; the assignment's was used")
    cells = list(submitted.cells)
    missing = [cell for cell in release.cells if cell.cell_type == "code" and _name(cell) not in names]
    if missing:
        which = ", ".join(_name(cell) for cell in missing)
        findings.append(f"cells of the assignment were missing and were put back: {which}")
        _put_back(cells, missing, [_name(cell) for cell in release.cells])
    points = [cell for cell in release.cells if _is_points(cell)]
    places = {_name(cell): _place(cells, cell) for cell in points}
    order: list[NotebookNode] = []
    for number, cell in enumerate(cells):
        if not _is_points(cell):
            order.append(cell)
        order += [_copy(one) for one in points if places[_name(one)] == number]
    marks = {_name(cell): cell.metadata for cell in release.cells if "nbgrader" in cell.metadata}
    book = nbformat.v4.new_notebook(cells=_marked(order, marks), metadata=dict(release.metadata))
    suspect = any("gradebook.db" in cell.source for cell in order)
    return Submission(book, tuple(findings), suspect, _history(submitted))


def _clean(cell: Any) -> NotebookNode:
    """Keep of a cell what grading needs: its kind, its source, its name, and of its outputs only what a check left there."""
    kind = cell["cell_type"]
    source = cell.get("source", "")
    source = source if isinstance(source, str) else "".join(map(str, source))
    mark = _mapping(_mapping(cell.get("metadata")).get("nbgrader"))
    grade_id = mark.get("grade_id")
    metadata = {"nbgrader": {"grade_id": grade_id}} if isinstance(grade_id, str) else {}
    name = cell.get("id") if isinstance(cell.get("id"), str) else ""
    if kind != "code":
        made = nbformat.v4.new_markdown_cell(source, metadata=metadata)
    else:
        outputs = cell.get("outputs")
        kept = [_mapping(_mapping(_mapping(one).get("metadata")).get("amp_course")) for one in outputs or [] if one]
        made = nbformat.v4.new_code_cell(source, metadata=metadata | {"amp_course": [one for one in kept if one]})
    made.id = name
    return made


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _name(cell: NotebookNode) -> str:
    """Return what the assignment calls a cell: by nbgrader's mark, else by its id."""
    return str(cell.metadata.get("nbgrader", {}).get("grade_id") or cell.get("id", ""))


def _is_points(cell: NotebookNode) -> bool:
    return cell.cell_type == "code" and _name(cell).startswith(TEST) and _name(cell) != cell.get("id")


def _versions(submitted: NotebookNode, release: NotebookNode) -> Iterator[str]:
    mine, theirs = (_mapping(book.metadata.get("amp_course")) for book in (release, submitted))
    given = {_name(cell) for cell in release.cells if cell.cell_type == "code"}
    if not given & {_name(cell) for cell in submitted.cells}:
        yield "none of its cells is from this assignment: is it another notebook?"
    elif theirs.get("digest") not in (None, mine.get("digest")):
        version = str(theirs.get("version", "unknown"))[:20]
        yield (
            f"it was made from another version of the assignment (version {version} of the course); it is graded by the one in "
            "release/"
        )


def _put_back(cells: list[NotebookNode], missing: list[NotebookNode], order: list[str]) -> None:
    """Insert each missing cell before the first one that comes later in the assignment."""
    for one in missing:
        later = set(order[order.index(_name(one)) + 1 :])
        place = next((number for number, cell in enumerate(cells) if _name(cell) in later), len(cells))
        cells.insert(place, _copy(one))


def _place(cells: list[NotebookNode], points: NotebookNode) -> int:
    """Return the number of the cell after which a check belongs: its own last copy, or the answer's if that comes later."""
    answer = _name(points).removeprefix(TEST)
    return max(number for number, cell in enumerate(cells) if _name(cell) in (_name(points), answer))


def _copy(cell: NotebookNode) -> NotebookNode:
    return nbformat.from_dict({**cell, "metadata": dict(cell.metadata)})


def _marked(cells: list[NotebookNode], marks: dict[str, Any]) -> list[NotebookNode]:
    """Give every cell an id of its own, and the assignment's marks for nbgrader to the last cell that bears their name."""
    given: set[str] = set()
    for number, cell in reversed(list(enumerate(cells))):
        name = _name(cell)
        cell.metadata = nbformat.from_dict(dict(marks[name]) if name in marks and name not in given else {})
        given.add(name)
        cell.id = f"cell-{number}"
    return cells


def _history(submitted: NotebookNode) -> dict[str, dict[str, Any]]:
    """Collect how each answer came about. The student's machine wrote it, so nothing but the report relies on it."""
    found: dict[str, dict[str, Any]] = {}

    def entry(name: Any) -> dict[str, Any]:
        return found.setdefault(str(name)[:80], {"attempts": 0, "hints": 0, "solution": False, "mistakes": {}})

    for cell in submitted.cells:
        if cell.cell_type != "code":
            continue
        for kept in cell.metadata.get("amp_course", []):
            one = entry(kept.get("exercise"))
            for what in ("attempts", "hints"):
                number = kept.get(what)
                one[what] = max(one[what], min(number, 10_000)) if type(number) is int else one[what]
            one["solution"] |= kept.get("solution") is True
            met = {
                str(name)[:80]: times for name, times in _mapping(kept.get("mistakes")).items() if type(times) is int
            }
            one["mistakes"] = {
                name: max(met.get(name, 0), one["mistakes"].get(name, 0)) for name in met | one["mistakes"]
            }
    asked = [
        match.groups() for cell in submitted.cells if cell.cell_type == "code" for match in _HELP.finditer(cell.source)
    ]
    for name, what in asked:  # a cell that is still there, run or not
        for key, one in found.items():
            if key.endswith(f".{name}"):
                one["hints"] = max(one["hints"], 1 if what == "hint" else 0)
                one["solution"] |= what == "solution"
    return found
