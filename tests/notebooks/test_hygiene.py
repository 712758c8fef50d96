"""What every notebook keeps to, so that nbval compares something and the page reads well on a
code host.
"""

import json
import re
from pathlib import Path

import nbformat
import pytest

from amp_course import authoring

ROOT = Path(__file__).resolve().parents[2]
RUN = sorted([*ROOT.glob("notebooks/*.ipynb"), *ROOT.glob("solutions/*.ipynb")])
CHAPTERS = sorted(ROOT.glob("notebooks/*.ipynb"))
EXERCISES = sorted(ROOT.glob("exercises/*.ipynb"))
TAGS = {"nbval-ignore-output", "raises-exception", "solution-only"}


def read(path):
    return nbformat.read(path, as_version=4)


def code(book):
    return [cell for cell in book.cells if cell.cell_type == "code"]


def name(path):
    return f"{path.parent.name}/{path.name}"


@pytest.mark.parametrize("path", RUN, ids=name)
def test_was_run_from_top_to_bottom(path):
    counts = [cell.execution_count for cell in code(read(path))]
    assert counts == list(range(1, len(counts) + 1))


def test_stored_outputs_are_up_to_date():
    old = "".join(f"\n  {name(path)}: {reason}" for path, reason in authoring.out_of_date().items())
    if old:
        pytest.fail(f"run `make notebooks`, for these are out of date:{old}", pytrace=False)


@pytest.mark.parametrize("path", RUN, ids=name)
def test_has_outputs_to_compare(path):
    shown = [cell for cell in code(read(path)) if cell.outputs]
    compared = [
        cell for cell in shown if "nbval-ignore-output" not in cell.metadata.get("tags", [])
    ]
    assert len(shown) >= len(code(read(path))) / 3 and compared


@pytest.mark.parametrize("path", RUN, ids=name)
def test_has_no_warning_and_no_bar_in_its_outputs(path):
    for cell in code(read(path)):
        for output in cell.outputs:
            assert output.get("name") != "stderr", cell.source
            assert "it/s]" not in json.dumps(output), cell.source


@pytest.mark.parametrize("path", RUN, ids=name)
def test_errors_stand_only_where_they_are_meant(path):
    for cell in code(read(path)):
        failed = any(output.output_type == "error" for output in cell.outputs)
        assert failed == ("raises-exception" in cell.metadata.get("tags", [])), cell.source


@pytest.mark.parametrize("path", RUN, ids=name)
def test_stored_times_are_those_of_a_quiet_machine(path):
    """Where this fails, run the notebook again when nothing else runs."""
    for cell in code(read(path)):
        shown = json.dumps(cell.outputs)
        assert "too busy to tell" not in shown and "waiting for a CPU" not in shown, cell.source


@pytest.mark.parametrize("path", [*RUN, *EXERCISES], ids=name)
def test_tags_are_known_and_comments_are_no_markers(path):
    for cell in read(path).cells:
        tags = [tag for tag in cell.metadata.get("tags", []) if not tag.startswith("answer-")]
        assert set(tags) <= TAGS
        assert not re.search(r"#\s*(NBVAL|nbval)", cell.source)


@pytest.mark.parametrize("path", [*RUN, *EXERCISES], ids=name)
def test_says_nothing_of_the_machine_it_was_made_on(path):
    text = re.sub(r'"image/png": "[^"]*"', "", path.read_text(encoding="utf-8"))
    assert not re.search(r"/(home|root|Users|work|tmp|opt|builds?)/|[A-Z]:\\\\|/ipykernel_", text)


@pytest.mark.parametrize("path", CHAPTERS, ids=name)
def test_chapter_is_of_a_size_to_read(path):
    book = read(path)
    cells = code(book)
    for cell in book.cells:
        for talk in ("amp_course", "slideshow"):  # the talk's words are not on the page
            cell.metadata.pop(talk, None)
    assert len(nbformat.writes(book).encode()) <= 300 * 1024
    assert len(cells) <= 30
    assert [cell.source for cell in cells if cell.source.count("\n") + 1 > 18] == []


@pytest.mark.parametrize("path", [*RUN, *EXERCISES], ids=name)
def test_links_lead_somewhere(path):
    for cell in read(path).cells:
        if cell.cell_type != "markdown":
            continue
        for link in re.findall(r"\]\(([^)]+\.ipynb)\)", cell.source):
            target = link.replace(
                "../my_work/", "../exercises/"
            )  # the reader's copy is made from it
            assert (path.parent / target).resolve().is_file(), link


@pytest.mark.parametrize("path", EXERCISES, ids=name)
def test_exercises_hold_no_outputs_and_no_solutions(path):
    book = read(path)
    assert all(not cell.outputs and cell.execution_count is None for cell in code(book))
    assert "BEGIN SOLUTION" not in path.read_text(encoding="utf-8")
