"""Numbers on slides and in their notes are the notebook's:
when it is run again, this says which slides are out of date.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import nbformat
import pytest

from amp_course.course import CHAPTERS, Chapter

ROOT = Path(__file__).resolve().parents[2]
NUMBER = re.compile(r"(?<![\w.])(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:e[+-]?\d+)?", re.IGNORECASE)
UNITS = (1.0, 1e3, 1e-3, 1e6, 1e-6)  # 706 µs may be 0.7 ms, 536870912 may be 537 million


def numbers(text: str) -> list[str]:
    """Return the numbers of a text as they are written, without the commas in thousands."""
    plain = text.replace("\u202f", "").replace("−", "-")
    return [one.replace(",", "") for one in NUMBER.findall(plain)]


def texts(chapter: Chapter) -> tuple[list[tuple[str, str]], str]:
    """Return (place, text) of what the slides say, and all that the notebook says without them."""
    book = nbformat.read(ROOT / "notebooks" / f"{chapter.stem}.ipynb", as_version=4)
    said, shown = [], []
    for cell in book.cells:
        words = cell.metadata.get("amp_course", {})
        for one in [words, *words.get("more", [])]:
            said += [
                (f"{cell.id}, {key}", one[key]) for key in ("title", "slide", "notes") if key in one
            ]
        shown.append(cell.source)
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            shown += [output.get(kind, "") for kind in ("text", "evalue")]
            shown += [data.get(kind, "") for kind in ("text/plain", "text/markdown")]
            shown.append(re.sub(r"<[^>]+>", " ", data.get("text/html", "")))
            shown.append(json.dumps(output.get("metadata", {})))
    return said, "\n".join(shown)


def same(written: str, known: set[float]) -> bool:
    """Say whether a number is one of those known, rounded to the digits that are written,
    in some unit.
    """
    digits = len(re.sub(r"e.*|\D", "", written.lower()).lstrip("0")) or 1
    value = float(written)
    rounded = (float(f"{one * unit:.{digits}g}") for one in known for unit in UNITS)
    return value in known or value in rounded


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: chapter.stem)
def test_numbers_on_slides_are_those_of_the_notebook(chapter: Chapter) -> None:
    said, shown = texts(chapter)
    known = {float(one) for one in numbers(shown)}
    known |= {float(exercise.number) for exercise in chapter.exercises()}
    references = r"[Cc]hapters? \d+(?: to \d+)?|[Nn]umber \d+|[Ee]xercise \d+"
    lost = [
        (place, written)
        for place, text in said
        for written in numbers(re.sub(references, "", text))
        if float(written) >= 13 and not same(written, known)
    ]
    assert lost == []


def test_a_number_that_the_notebook_does_not_show_is_found() -> None:
    assert numbers("1,004 KiB, 3.0e-08 and fp16, block1, 14.8 ms") == ["1004", "3.0e-08", "14.8"]
    assert same("537", {536870912.0}) and same("0.7", {706.0}) and same("8.83", {8.83776}) is False
    assert same("38", {37.6}) and not same("38", {36.0}) and same("1.88", {1.88})
