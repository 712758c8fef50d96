"""Phrases that a native author would not write: in notebooks' Markdown, messages, docstrings,
comments, the README.

A short list of what has crept in again and again, each with what to write instead. It is no style
guide: add a phrase only if it is wrong wherever it matches.
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
    r"\bstands? among\b|\bis theirs\b": "lies between; belongs to them",
    r"\bset back\b(?! by)": "reset",
    r"\bwhoever\b": "if you …",
    r"\btells? of\b": "means; shows",
    r"\binside of\b": "inside",
    r"\bbeside\b": "next to; compared with; besides",
    r"\bhanded (in|on|over)\b": "passed",
    r"(?<!there )\bis no (number|int|float|tensor|function|list|dict|pair|dtype|class|module)\b": (
        "is not a …"
    ),
    r"\bthe (check|test|judge|proxy|scaler|step) wants\b": "expects; asks for",
    r"^(Tell|Say) whether\b": "Return True if …",
    r"\bcure[sd]?\b": "fix; remedy",
    r"\b(spoil|mend)(s|ed|ing|t)?\b": "corrupt; fix",
    r"\bdef _?about_": "check_…, find_…, describe_…",
}


def texts(path):
    """Yield (place, text) for the prose of a file: of Python code its strings,
    its comments and its functions' names.
    """
    if path.suffix == ".md":
        yield from enumerate(path.read_text("utf-8").splitlines(), 1)
    elif path.suffix == ".ipynb":
        cells = nbformat.read(path, as_version=4).cells
        yield from ((cell.id, cell.source) for cell in cells if cell.cell_type == "markdown")
        for cell in cells:  # what the slides say
            said = cell.metadata.get("amp_course", {})
            for one in [said, *said.get("more", [])]:
                yield from ((cell.id, one.get(key, "")) for key in ("title", "slide", "notes"))
    else:
        code = path.read_text("utf-8")
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.lineno, node.value
            elif isinstance(node, ast.FunctionDef):
                yield node.lineno, f"def {node.name}"
        for number, line in enumerate(code.splitlines(), 1):
            if "#" in line:  # in a string, it has been given above already
                yield number, line.partition("#")[2]


def found_in(path):
    return [
        f"{path.relative_to(ROOT)}:{place}: “{match[0]}”, write: {instead}"
        for place, text in texts(path)
        for phrase, instead in INSTEAD.items()
        for match in re.finditer(phrase, text, re.IGNORECASE)
    ]


PATTERNS = ("notebooks/*.ipynb", "solutions/*.ipynb", "*.md", "amp_course/**/*.py")


@pytest.mark.parametrize("pattern", PATTERNS)
def test_no_phrase_is_back(pattern):
    paths = [one for one in sorted(ROOT.glob(pattern)) if "/phrasebook/loops/" not in str(one)]
    found = [one for path in paths for one in found_in(path)]
    assert paths and not found, "\n".join(found)


def test_the_list_finds_what_it_is_for(tmp_path, monkeypatch):
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    page = tmp_path / "page.md"
    for sentence in ("It falls all the same.", "The judging stands in a file.", "Drawn anew"):
        page.write_text(sentence)
        assert len(found_in(page)) == 1
    page.write_text("Three stand in for the others; they are all the same.")
    assert not found_in(page)
