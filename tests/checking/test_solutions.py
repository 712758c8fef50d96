"""Finding the answer in a solution notebook, in a small course made up for the purpose."""

import json
from pathlib import Path
from typing import Any

import pytest

from amp_course.checking.solutions import solution_code
from amp_course.kit.errors import CourseError


def cell(source: str, *tags: str, as_lines: bool = True) -> dict[str, Any]:
    return {
        "cell_type": "code",
        "metadata": {"tags": list(tags)} if tags else {},
        "source": source.splitlines(keepends=True) if as_lines else source,
    }


FUNCTION = '''def f(x):
    """Double it."""
    ### BEGIN SOLUTION
    y = x
    return y + y
    ### END SOLUTION


double.check(f)
'''
TABLE = """bytes_per_parameter = {"fp32": ..., "amp": ...}
### BEGIN SOLUTION
bytes_per_parameter = {
    "fp32": 16,  # four times four
    "amp": 16,
}
### END SOLUTION

table.check(bytes_per_parameter)"""
TWO = """import math

scale = 2.0
first = ...  # a number
second = (..., ...)
### BEGIN SOLUTION
first = math.pi
second = (1, 2)
mask = x[..., 0]
unfilled = ...
### END SOLUTION
two.check((first, second))"""


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for folder in ("notebooks", "solutions"):
        (tmp_path / folder).mkdir()
    book = {
        "cells": [
            {
                "cell_type": "markdown",
                "metadata": {"tags": ["answer-nothing"]},
                "source": ["# Answers"],
            },
            cell("from here import double"),
            cell("double"),
            cell(FUNCTION, "answer-double"),
            cell("double.check(lambda x: 2 * x)", "solution-only"),
            cell(TABLE, "nbval-ignore-output", "answer-table", as_lines=False),
            cell(TWO, "answer-two"),
        ]
    }
    (tmp_path / "solutions" / "06_loop.ipynb").write_text(json.dumps(book), encoding="utf-8")
    (tmp_path / "solutions" / "07_loop_more.ipynb").write_text("{}", encoding="utf-8")
    monkeypatch.setenv("AMP_COURSE_ROOT", str(tmp_path))
    return tmp_path


def test_a_function(course: Path) -> None:
    assert (
        solution_code("loop", "double")
        == 'def f(x):\n    """Double it."""\n    y = x\n    return y + y'
    )


def test_a_value_and_not_its_placeholder(course: Path) -> None:
    code = solution_code("loop", "table")
    assert code == 'bytes_per_parameter = {\n    "fp32": 16,  # four times four\n    "amp": 16,\n}'


def test_other_lines_before_the_answer_stay(course: Path) -> None:
    assert solution_code("loop", "two") == (
        "import math\n\nscale = 2.0\nfirst = math.pi\nsecond = (1, 2)\nmask = x[..., 0]\nunfilled "
        "= ..."
    )


def test_exercise_that_has_no_answer(course: Path) -> None:
    with pytest.raises(
        LookupError, match=r"06_loop\.ipynb holds no cell with the tag answer-doub: fetch"
    ):
        solution_code("loop", "doub")


def test_chapter_that_has_no_notebook(course: Path) -> None:
    with pytest.raises(
        FileNotFoundError,
        match=r"no solutions/…_bits\.ipynb in .*: fetch the course's folder again",
    ):
        solution_code("bits", "double")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"cells": 5}',
        '{"cells": [5]}',
        '{"cells": [{"source": "x", "metadata": []}]}',
        '{"cells": [{"source": "x"}]} x',
    ],
)
def test_damaged_notebook(course: Path, text: str) -> None:
    (course / "solutions" / "06_loop.ipynb").write_text(text)
    with pytest.raises(
        LookupError, match=r"06_loop\.ipynb is damaged: fetch the course's solutions/ again"
    ):
        solution_code("loop", "double")


def test_no_course_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMP_COURSE_ROOT", str(tmp_path / "nowhere"))
    with pytest.raises(CourseError, match="has no folder notebooks/"):
        solution_code("loop", "double")
