"""Notebooks are stored with a stamp of what made their outputs,
and one that is out of date is found and run again.
"""

import shutil
from pathlib import Path

import nbformat
import pytest
import torch
from nbformat import v4

from amp_course import authoring, stamps

ROOT = Path(__file__).parents[1]


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A course of one small notebook; its package is that of the clone, copied."""
    shutil.copytree(
        ROOT / "amp_course", tmp_path / "amp_course", ignore=shutil.ignore_patterns("__pycache__")
    )
    shutil.copy(ROOT / "constraints.txt", tmp_path)
    for folder in ("notebooks", "solutions", "exercises"):
        (tmp_path / folder).mkdir()
    cells = [
        v4.new_markdown_cell("# Formats"),
        v4.new_code_cell("from amp_course.bits.formats import FP16\n\nFP16.max"),
    ]
    nbformat.write(v4.new_notebook(cells=cells), tmp_path / "notebooks" / "01_bits.ipynb")
    monkeypatch.setenv("AMP_COURSE_ROOT", str(tmp_path))
    return tmp_path


def edit(path, old, new):
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    stamps._module_digest.cache_clear()


def reasons():
    return list(authoring.out_of_date().values())


@pytest.mark.timeout(300)
def test_a_run_stamps_and_what_changes_an_output_makes_it_out_of_date(course, capsys):
    path = course / "notebooks" / "01_bits.ipynb"
    formats = course / "amp_course" / "bits" / "formats.py"
    installed = torch.__version__.partition("+")[
        0
    ]  # which need not be the version that the course pins
    edit(
        course / "constraints.txt",
        f"\ntorch=={stamps.pins()['torch']}\n",
        f"\ntorch=={installed}\n",
    )
    assert reasons() == ["it has no stamp that says what its outputs came from"]
    assert authoring.main(["run"]) == 0
    assert "[1/1] running" in capsys.readouterr().out
    book = nbformat.read(path, as_version=4)
    nbformat.validate(book)
    assert [cell.cell_type for cell in book.cells] == [
        "markdown",
        "code",
    ]  # the report's cell is not kept
    assert book.cells[1].outputs[0].data["text/plain"] == "65504.0"
    assert {"amp_course", "amp_course.bits", "amp_course.bits.formats"} <= set(
        book.metadata.amp_course.modules
    )
    assert "amp_course.loop" not in book.metadata.amp_course.modules
    assert reasons() == []

    stamped = path.read_text()
    assert authoring.main(["run"]) == 0  # nothing to do
    assert "up to date" in capsys.readouterr().out and path.read_text() == stamped

    # What changes no output: prose, a comment, a module that was not loaded.
    edit(path, "# Formats", "# Number formats")
    edit(formats, "\n@dataclass", "\n# a comment\n@dataclass")
    edit(course / "amp_course" / "loop" / "train.py", '"""', '"""A ')
    assert reasons() == []

    # What may change one: code, a cell, a pin, a module that is gone.
    changed = ["its code or that of the course has changed since it was run"]
    code = formats.read_text()
    edit(formats, "\n@dataclass", "\nEXTRA = 1\n\n\n@dataclass")
    assert reasons() == changed
    formats.write_text(code)
    stamps._module_digest.cache_clear()
    assert reasons() == []
    edit(path, "FP16.max", "FP16.min")
    assert reasons() == changed
    edit(path, "FP16.min", "FP16.max")
    edit(course / "constraints.txt", "\nmatplotlib==", "\nmatplotlib==1")
    assert reasons() == changed
    edit(course / "constraints.txt", "\nmatplotlib==1", "\nmatplotlib==")
    assert reasons() == []
    edit(course / "constraints.txt", f"\ntorch=={installed}\n", "\ntorch==1.0\n")
    assert reasons()[0].endswith(f" and torch {installed}")
    edit(course / "constraints.txt", "\ntorch==1.0\n", f"\ntorch=={installed}\n")
    formats.unlink()
    stamps._module_digest.cache_clear()
    assert reasons() == changed


def test_the_digest_is_the_same_on_every_machine(tmp_path, monkeypatch):
    """Worked out by hand, from a course of one module."""
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "constraints.txt").write_text("".join(f"{name}==1.0\n" for name in stamps.PACKAGES))
    (tmp_path / "amp_course").mkdir()
    (tmp_path / "amp_course" / "one.py").write_bytes(
        b"x = '#'  # a comment\r\n# another\r\ny = 2\r\n"
    )
    monkeypatch.setenv("AMP_COURSE_ROOT", str(tmp_path))
    book = v4.new_notebook(cells=[v4.new_code_cell("x"), v4.new_markdown_cell("prose")])
    # Of: x, NUL, "amp_course.one " and the digest of `printf "x = '#'\ny = 2\n"`, and NUL and the
    #     pin of each package.
    assert (
        stamps.digest(book, ["amp_course.one"])
        == "3c5f16f115c5052e03c9bdbbe4ca8bd35f87963a6d67c052aaa259862666e950"
    )


@pytest.mark.parametrize(
    ("code", "rest"),
    [
        ("x = 1  # one\n", "x = 1\n"),
        ("# one\n\n    # two\nx = 1\n", "\nx = 1\n"),
        ("x = '# not one'\n", "x = '# not one'\n"),
        ('x = """\n# not one\n"""\n', 'x = """\n# not one\n"""\n'),
        ('x = f"{y:#x}"  # hex\n', 'x = f"{y:#x}"\n'),
    ],
)
def test_comments_are_left_out_and_strings_kept(code, rest):
    assert stamps.without_comments(code) == rest
