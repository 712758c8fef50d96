"""Find an exercise's answer in its master, the solution notebook.

A cell with an answer has the tag `answer-NAME`; the lines between `### BEGIN SOLUTION` and
`### END SOLUTION` are left blank in the learner's copy.
"""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

from amp_course.checking.blank import is_blank
from amp_course.kit.paths import course_root

BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"


def solution_code(chapter: str, name: str) -> str:
    """Return the solved cell of an exercise, without markers, `answer = ...` and the call of
    `check`.

    Raises FileNotFoundError or LookupError, with the notebook's name, if the course is incomplete.
    """
    book = _notebook(chapter)
    try:
        cells = json.loads(book.read_text(encoding="utf-8"))["cells"]
        found = [
            cell["source"] for cell in cells if f"answer-{name}" in cell["metadata"].get("tags", [])
        ]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise LookupError(f"{book} is damaged: fetch the course's solutions/ again") from None
    if not found:
        raise LookupError(
            f"{book} holds no cell with the tag answer-{name}: fetch the course's solutions/ again"
        )
    return _answer("".join(found[0]).split("\n"), name)


def _answer(lines: list[str], name: str) -> str:
    markers = [line.strip() for line in lines]
    begin = markers.index(BEGIN) if BEGIN in markers else 0
    code = [line for line in lines[:begin] if not _is_placeholder(line)]
    code += [
        line
        for line in lines[begin:]
        if line.strip() not in (BEGIN, END) and not re.match(rf"(exercises\.)?{name}\.check", line)
    ]
    return "\n".join(code).strip()


def _is_placeholder(line: str) -> bool:
    """Return True for `answer = ...` and `bytes = {"fp32": ..., "amp": ...}`."""
    _, _, value = line.partition(" = ")
    try:
        return is_blank(ast.literal_eval(value.strip()))
    except (ValueError, SyntaxError):
        return False


def _notebook(chapter: str) -> Path:
    found = sorted((course_root() / "solutions").glob(f"[0-9][0-9]_{chapter}.ipynb"))
    if not found:
        raise FileNotFoundError(
            f"there is no solutions/…_{chapter}.ipynb in {course_root()}: fetch the course's "
            f"folder again"
        )
    return found[0]
