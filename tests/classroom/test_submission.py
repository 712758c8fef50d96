"""What students hand in: read or refused in words, repaired where it can be,
and never run for that.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat import NotebookNode

from amp_course.classroom.assignment import TEST
from amp_course.classroom.folder import ClassFolder
from amp_course.classroom.submission import LIMIT, Submission, Unreadable, prepare, read
from amp_course.course import Chapter
from tests.classroom.students import hand_in, notebook, right_answers

Repaired = Callable[[NotebookNode | str], Submission]


@pytest.fixture
def release(place: ClassFolder, loop: Chapter) -> NotebookNode:
    return nbformat.read(place.release(loop), as_version=4)


@pytest.fixture
def full(place: ClassFolder, loop: Chapter) -> NotebookNode:
    return notebook(place, loop, right_answers(place, loop))


@pytest.fixture
def repaired(place: ClassFolder, loop: Chapter, release: NotebookNode) -> Repaired:
    return lambda book: prepare(read(hand_in(place, loop, "ada", book)), release)


def names(found: Submission) -> list[str]:
    return [
        cell.metadata.get("nbgrader", {}).get("grade_id", "")
        for cell in found.book.cells
        if cell.cell_type == "code"
    ]


def cell(book: NotebookNode, name: str) -> NotebookNode:
    return next(
        one for one in book.cells if one.metadata.get("nbgrader", {}).get("grade_id") == name
    )


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"\x89PNG\r\n\x1a\n", "not a text file"),
        (b"# my answers\n", "does not hold JSON"),
        (b"{" * 100_000, "does not hold JSON"),
        (b"[1, 2]", "not a notebook"),
        (b'{"cells": 3, "nbformat": 4}', "not a notebook"),
        (b'{"nbformat": 4, "cells": [{"source": "x"}]}', "not a notebook"),
    ],
)
def test_what_is_no_notebook(place: ClassFolder, loop: Chapter, content: bytes, words: str) -> None:
    with pytest.raises(Unreadable, match=words):
        read(hand_in(place, loop, "ada", content))


def test_nothing_there_a_folder_a_link_and_too_much(
    place: ClassFolder, loop: Chapter, full: NotebookNode
) -> None:
    file = hand_in(place, loop, "ada", full)
    file.rename(file.with_name("notes.txt"))
    with pytest.raises(Unreadable, match=r"there is no 06_loop.ipynb, but notes.txt"):
        read(file)
    file.mkdir()
    with pytest.raises(Unreadable, match="is a folder"):
        read(file)
    file.rmdir()
    file.symlink_to(place.gradebook)
    with pytest.raises(Unreadable, match="is a link to another place"):
        read(file)
    other = hand_in(place, loop, "bo", full)
    other.parent.rename(place.root / "elsewhere")
    other.parent.symlink_to(place.root / "elsewhere")
    with pytest.raises(Unreadable, match="06_loop is a link"):
        read(other)
    large = hand_in(place, loop, "chen", full)
    with large.with_name("data.bin").open("wb") as data:
        data.truncate(LIMIT + 1)
    with pytest.raises(Unreadable, match="20 MB is the limit"):
        read(large)


def test_a_sound_submission_stays_as_it_is(repaired: Repaired, full: NotebookNode) -> None:
    found = repaired(full)
    assert found.findings == () and not found.suspect
    assert [one.source for one in found.book.cells] == [one.source for one in full.cells]
    assert names(found) == names(Submission(full, (), False, {}))
    nbformat.validate(found.book)


def test_doubled_cells(repaired: Repaired, release: NotebookNode, full: NotebookNode) -> None:
    """JupyterLab copies a cell with its marks; nbgrader then stops for the whole class."""
    place_of = full.cells.index(cell(full, "add_autocast"))
    first = nbformat.from_dict(full.cells[place_of] | {"source": "add_autocast = 'an earlier try'"})
    full.cells.insert(place_of, first)
    full.cells.append(nbformat.from_dict(dict(cell(full, TEST + "add_autocast"))))
    found = repaired(full)
    assert found.findings == (
        "the cell add_autocast appears 2 times; the last one above its check counts",
    )
    assert sorted(name for name in names(found) if name) == sorted(
        name for name in names(Submission(release, (), False, {})) if name
    )
    sources = [one.source for one in found.book.cells]
    assert sources.index(first.source) < sources.index(cell(found.book, "add_autocast").source)
    assert names(found).index("add_autocast") < names(found).index(TEST + "add_autocast")


def test_missing_cells_are_put_back_in_their_places(
    repaired: Repaired, release: NotebookNode, full: NotebookNode
) -> None:
    lost = [cell(full, "log_scale"), cell(full, TEST + "add_scaler"), full.cells[2]]
    assert "import torch" in lost[2].source
    full.cells = [one for one in full.cells if one not in lost]
    found = repaired(full)
    (words,) = found.findings
    assert (
        words.startswith("cells of the assignment were missing")
        and "log_scale" in words
        and "points-add_scaler" in words
    )
    every = [one for one in names(Submission(release, (), False, {})) if one]
    wanted = [one for one in every if one not in ("log_scale", "points-log_scale")]
    assert [one for one in names(found) if one and one != "points-log_scale"] == wanted
    assert names(found).index("points-log_scale") > names(found).index(
        "evaluate_right"
    )  # it may be defined anywhere
    code = [one.source for one in found.book.cells if one.cell_type == "code"]
    assert "import torch" in code[0]


def test_a_changed_check_is_put_back(
    repaired: Repaired, release: NotebookNode, full: NotebookNode
) -> None:
    cell(full, TEST + "add_scaler").source = "assert True"
    found = repaired(full)
    assert found.findings == ("the cell points-add_scaler was changed; the assignment's was used",)
    assert cell(found.book, TEST + "add_scaler").source == cell(release, TEST + "add_scaler").source


def test_checks_moved_above_their_answers(
    repaired: Repaired, loop: Chapter, full: NotebookNode
) -> None:
    full.cells.reverse()
    order = names(repaired(full))
    for exercise in loop.exercises():
        assert order.index(exercise.name) < order.index(TEST + exercise.name)


@pytest.mark.parametrize("ids", [True, False])
def test_marks_that_an_editor_lost(
    repaired: Repaired, loop: Chapter, full: NotebookNode, ids: bool
) -> None:
    """Some editors drop metadata, some drop ids too: the answers still run, and are checked."""
    for one in full.cells:
        one.metadata = nbformat.from_dict({})
        if not ids:
            del one["id"]
    found = repaired(full)
    assert (
        found.findings == () if ids else "missing: honest_timing, add_autocast" in found.findings[0]
    )
    assert {TEST + exercise.name for exercise in loop.exercises()} <= set(names(found))
    last_answer = max(
        number for number, one in enumerate(found.book.cells) if "def evaluate_right" in one.source
    )
    assert last_answer < found.book.cells.index(cell(found.book, TEST + "evaluate_right"))
    assert not any(
        "# your code here" in one.source for one in found.book.cells if one.cell_type == "code"
    )


def test_another_notebook(repaired: Repaired) -> None:
    other = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("x = 1")])
    assert repaired(other).findings == (
        "none of its cells is from this assignment: is it another notebook?",
    )


def test_a_copy_below_its_check_is_a_playground(repaired: Repaired, full: NotebookNode) -> None:
    copy = nbformat.from_dict(
        cell(full, "add_autocast") | {"source": "add_autocast = 'what if'", "id": "new"}
    )
    full.cells.insert(full.cells.index(cell(full, TEST + "add_autocast")) + 1, copy)
    found = repaired(full)
    sources = [one.source for one in found.book.cells]
    assert sources.index(cell(found.book, TEST + "add_autocast").source) < sources.index(
        copy.source
    )
    assert "def add_autocast" in cell(found.book, "add_autocast").source


def test_an_answer_turned_into_text(repaired: Repaired, full: NotebookNode) -> None:
    one = cell(full, "add_autocast")
    full.cells[full.cells.index(one)] = nbformat.v4.new_markdown_cell(
        one.source, metadata=one.metadata
    )
    found = repaired(full)
    assert found.findings == ("the cell add_autocast was a text cell; it was run as code",)
    assert cell(found.book, "add_autocast").cell_type == "code"


@pytest.mark.parametrize("change", ["CRLF", "odd id", "no ids", "kernelspec", "UTF-16", "BOM"])
def test_other_editors_write_otherwise(
    place: ClassFolder, loop: Chapter, release: NotebookNode, full: NotebookNode, change: str
) -> None:
    book = json.loads(json.dumps(full))
    for one in book["cells"]:
        if change == "CRLF":
            one["source"] = one["source"].replace("\n", "\r\n")
        if change == "no ids":
            del one["id"]
    if change == "odd id":
        book["cells"][0]["id"] = "a b!"
    if change == "kernelspec":
        book["metadata"]["kernelspec"] = 5
    encoding = {"UTF-16": "utf-16", "BOM": "utf-8-sig"}.get(change, "utf-8")
    file = hand_in(place, loop, "ada", json.dumps(book).encode(encoding))
    found = prepare(read(file), release)
    assert found.findings == ()
    nbformat.validate(found.book)


def test_another_version_of_the_assignment(repaired: Repaired, full: NotebookNode) -> None:
    full.metadata.amp_course = {"assignment": "06_loop", "version": "0.0.1", "digest": "0" * 16}
    (words,) = repaired(full).findings
    assert "another version of the assignment (version 0.0.1 of the course)" in words


def test_code_that_names_the_gradebook(repaired: Repaired, full: NotebookNode) -> None:
    full.cells.append(nbformat.v4.new_code_cell("!sqlite3 ../gradebook.db .dump"))
    assert repaired(full).suspect


def test_how_an_answer_came_about(repaired: Repaired, loop: Chapter, full: NotebookNode) -> None:
    def output(**kept: Any) -> NotebookNode:
        return nbformat.v4.new_output(
            "display_data", data={"text/plain": "x"}, metadata={"amp_course": kept}
        )

    one = {
        "exercise": "loop.add_scaler",
        "attempts": 3,
        "hints": 0,
        "solution": False,
        "mistakes": {"no update": 2},
    }
    two = {
        "exercise": "loop.add_scaler",
        "attempts": 5,
        "hints": "many",
        "mistakes": {"no update": "often", "step inside": 1},
    }
    cell(full, TEST + "add_scaler").outputs = [
        output(**one),
        output(**two),
        output(exercise=[], attempts=-1, mistakes=7),
    ]
    full.cells.append(
        nbformat.v4.new_code_cell("exercises.add_scaler.hint()\nexercises.add_scaler.solution()")
    )
    found = repaired(full).history["loop.add_scaler"]
    assert found == {
        "attempts": 5,
        "hints": 1,
        "solution": True,
        "mistakes": {"no update": 2, "step inside": 1},
    }


@pytest.mark.parametrize("outputs", [None, [None], [{"metadata": {"amp_course": []}}]])
def test_outputs_of_any_shape(repaired: Repaired, full: NotebookNode, outputs: Any) -> None:
    book = json.loads(json.dumps(full))
    book["cells"][2]["outputs"] = outputs
    assert repaired(json.dumps(book)).findings == ()


def test_other_names_that_browsers_make(
    place: ClassFolder, loop: Chapter, full: NotebookNode
) -> None:
    file = hand_in(place, loop, "ada", full)
    file.rename(file.with_name("06_loop (1).ipynb"))
    assert [Path(one.notebook).name for one in place.handed_in(loop)] == ["06_loop (1).ipynb"]


def test_half_a_letter(place: ClassFolder, loop: Chapter, full: NotebookNode) -> None:
    full.cells.append(nbformat.v4.new_markdown_cell("half a letter"))
    text = json.dumps(full).replace("half a letter", "\\ud83d")
    assert read(hand_in(place, loop, "ada", text)).cells[-1].source == "�"
