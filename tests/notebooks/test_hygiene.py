"""What every notebook keeps to, so that nbval compares something and the page reads well on a
code host.
"""

import copy
import json
import re
from functools import cache
from pathlib import Path

import nbformat
import pytest

from amp_course import authoring

ROOT = Path(__file__).resolve().parents[2]
RUN = sorted([*ROOT.glob("notebooks/*.ipynb"), *ROOT.glob("solutions/*.ipynb")])
CHAPTERS = sorted(ROOT.glob("notebooks/*.ipynb"))
EXERCISES = sorted(ROOT.glob("exercises/*.ipynb"))
TAGS = {"nbval-ignore-output", "raises-exception", "solution-only"}


@cache
def read(path):
    return nbformat.read(path, as_version=4)


def code(path):
    return [cell for cell in read(path).cells if cell.cell_type == "code"]


def tags(cell):
    return cell.metadata.get("tags", [])


def name(path):
    return f"{path.parent.name}/{path.name}"


@pytest.mark.parametrize("path", RUN, ids=name)
def test_was_run_from_top_to_bottom_and_has_outputs_to_compare(path):
    cells = code(path)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    shown = [cell for cell in cells if cell.outputs]
    assert len(shown) >= len(cells) / 3
    assert any("nbval-ignore-output" not in tags(cell) for cell in shown)


def test_stored_outputs_are_up_to_date():
    old = "".join(f"\n  {name(path)}: {reason}" for path, reason in authoring.out_of_date().items())
    if old:
        pytest.fail(f"run `make notebooks`, for these are out of date:{old}", pytrace=False)


@pytest.mark.parametrize("path", RUN, ids=name)
def test_outputs_hold_no_warning_no_bar_and_errors_only_where_they_are_meant(path):
    """Where it finds a busy machine, run the notebook again when nothing else runs."""
    for cell in code(path):
        shown = json.dumps(cell.outputs)
        for words in ("it/s]", "too busy to tell", "waiting for a CPU"):
            assert words not in shown, cell.source
        assert not any(one.get("name") == "stderr" for one in cell.outputs), cell.source
        failed = any(one.output_type == "error" for one in cell.outputs)
        assert failed == ("raises-exception" in tags(cell)), cell.source


@pytest.mark.parametrize("path", [*RUN, *EXERCISES], ids=name)
def test_tags_are_known_comments_no_markers_and_the_machine_is_not_told(path):
    for cell in read(path).cells:
        assert {tag for tag in tags(cell) if not tag.startswith("answer-")} <= TAGS
        assert not re.search(r"#\s*(NBVAL|nbval)", cell.source)
    text = re.sub(r'"image/png": "[^"]*"', "", path.read_text(encoding="utf-8"))
    assert not re.search(r"/(home|root|Users|work|tmp|opt|builds?)/|[A-Z]:\\\\|/ipykernel_", text)


@pytest.mark.parametrize("path", CHAPTERS, ids=name)
def test_chapter_is_of_a_size_to_read(path):
    book = copy.deepcopy(read(path))
    for cell in book.cells:
        for talk in ("amp_course", "slideshow"):  # the talk's words are not on the page
            cell.metadata.pop(talk, None)
    assert len(nbformat.writes(book).encode()) <= 300 * 1024
    assert len(code(path)) <= 30
    assert [cell.source for cell in code(path) if cell.source.count("\n") + 1 > 18] == []


@pytest.mark.parametrize("path", [*RUN, *EXERCISES], ids=name)
def test_links_lead_somewhere(path):
    for cell in read(path).cells:
        if cell.cell_type != "markdown":
            continue
        for link in re.findall(r"\]\(([^)]+\.ipynb)\)", cell.source):
            # the reader's copy is made from it
            target = link.replace("../my_work/", "../exercises/")
            assert (path.parent / target).resolve().is_file(), link


@pytest.mark.parametrize("path", EXERCISES, ids=name)
def test_exercises_hold_no_outputs_and_no_solutions(path):
    assert all(not cell.outputs and cell.execution_count is None for cell in code(path))
    assert "BEGIN SOLUTION" not in path.read_text(encoding="utf-8")
