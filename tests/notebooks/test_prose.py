"""Phrases that a native author would not write, in what readers read: notebooks' Markdown, messages, the README.

A short list of what has crept in again and again, each with what to write instead. It is no style guide: add a phrase only if it
is wrong wherever it matches.
"""

import ast
import re
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[2]
INSTEAD = {
    r"(?<!are )(?<!were )\ball the same\b": "anyway; still",
    r"\banew\b": "again; from the start",
    r"\bby (itself|themselves)\b": "on its own; automatically",
    r"\bas (it|they) came\b": "unchanged",
    r"\bof now\b": "current",
    r"\bstands in (?!for\b)": "is in",
    r"\bhands on\b": "returns; passes on (and hands-on with a hyphen)",
    r"\bwins? (none|nothing)\b": "gains nothing",
    r"\bslip of the pen\b": "typo",
    r"\bno continuum\b": "has gaps",
    r"\bwhoever\b": "if you …",
    r"\btells? of\b": "means; shows",
    r"\binside of\b": "inside",
    r"\bbeside (torch|pytorch|fp32|gradients|the lists?|the published|(an?|the) (fp32|large|plain|median))": "compared with",
}
# Files that still have some. One that is clean fails here until it leaves the list.
NOT_YET: tuple[str, ...] = (
    "CONTRIBUTING.md",
    "README.md",
    "amp_course/autocast/exercises.py",
    "amp_course/autocast/judges/mini.py",
    "amp_course/autocast/judges/predicting.py",
    "amp_course/autocast/judges/regions.py",
    "amp_course/bits/exercises.py",
    "amp_course/bits/judges/cutting.py",
    "amp_course/bits/judges/spacing.py",
    "amp_course/bits/nearest.py",
    "amp_course/bits/panel.py",
    "amp_course/checking/explain.py",
    "amp_course/checking/progress.py",
    "amp_course/checking/solutions.py",
    "amp_course/checking/state.py",
    "amp_course/checking/stepping.py",
    "amp_course/loop/exercises.py",
    "amp_course/loop/judges/bookkeeping.py",
    "amp_course/loop/judges/training.py",
    "amp_course/loop/panel.py",
    "amp_course/loop/stepper.py",
    "amp_course/patterns/faults.py",
    "amp_course/patterns/judges/accumulation.py",
    "amp_course/patterns/judges/both.py",
    "amp_course/patterns/judges/midway.py",
    "amp_course/patterns/judges/penalty.py",
    "amp_course/patterns/judges/resuming.py",
    "amp_course/patterns/judges/saving.py",
    "amp_course/patterns/judges/two.py",
    "amp_course/patterns/resume.py",
    "amp_course/recipes/base.py",
    "amp_course/recipes/judges/by_hand.py",
    "amp_course/underflow/judges/weights.py",
    "amp_course/underflow/record.py",
    "notebooks/01_bits.ipynb",
    "notebooks/02_underflow.ipynb",
    "notebooks/04_autocast.ipynb",
    "notebooks/06_loop.ipynb",
    "notebooks/07_patterns.ipynb",
    "notebooks/08_recipes.ipynb",
    "solutions/01_bits.ipynb",
    "solutions/02_underflow.ipynb",
    "solutions/03_positions.ipynb",
    "solutions/04_autocast.ipynb",
    "solutions/07_patterns.ipynb",
)


def texts(path):
    """Yield (place, text) for what a reader sees of a file: docstrings and comments are for others."""
    if path.suffix == ".md":
        yield from enumerate(path.read_text("utf-8").splitlines(), 1)
    elif path.suffix == ".ipynb":
        cells = nbformat.read(path, as_version=4).cells
        yield from ((cell.id, cell.source) for cell in cells if cell.cell_type == "markdown")
    else:
        tree = ast.parse(path.read_text("utf-8"))
        expressions = (node.value for node in ast.walk(tree) if isinstance(node, ast.Expr))
        comments = {id(value) for value in expressions if isinstance(value, ast.Constant)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in comments:
                yield node.lineno, node.value


def found_in(path):
    return [
        f"{path.relative_to(ROOT)}:{place}: “{match[0]}”, write: {instead}"
        for place, text in texts(path)
        for phrase, instead in INSTEAD.items()
        for match in re.finditer(phrase, text, re.IGNORECASE)
    ]


PATTERNS = ("notebooks/*.ipynb", "solutions/*.ipynb", "*.md", "amp_course/**/*.py")
FILES = [path for pattern in PATTERNS for path in sorted(ROOT.glob(pattern)) if "/phrasebook_loops/" not in str(path)]


def test_no_phrase_is_back():
    found = {str(path.relative_to(ROOT)): lines for path in FILES if (lines := found_in(path))}
    new = [line for name, lines in found.items() if name not in NOT_YET for line in lines]
    assert not new, "\n".join(new)
    assert set(NOT_YET) <= set(found), f"take them off the list: {sorted(set(NOT_YET) - set(found))}"


@pytest.mark.parametrize(
    "sentence",
    [
        "It falls all the same.",
        "The judging stands in a file.",
        "Drawn anew",
        "it scales by itself",
        "inside of a region",
    ],
)
def test_the_list_finds_what_it_is_for(sentence, tmp_path, monkeypatch):
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    (tmp_path / "page.md").write_text(sentence)
    assert len(found_in(tmp_path / "page.md")) == 1
    (tmp_path / "page.md").write_text("Three stand in for the others; they are all the same.")
    assert not found_in(tmp_path / "page.md")
