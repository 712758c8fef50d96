"""Each table in a chapter's Markdown says what its source says (`table_values.py`), and each check
objects when a cell is altered.

What no check can see is cited next to its table: Paddle 2.2's two bad steps, compute capabilities,
AMD's CDNA4, what a collective that hangs needs.
"""

import json
from functools import cache
from pathlib import Path

import pytest

from amp_course.course import CHAPTERS
from tests.notebooks import tables_of_names as names
from tests.notebooks import tables_of_values as values
from tests.slides.test_numbers import numbers, texts

ROOT = Path(__file__).resolve().parents[2]
CHECKS = {  # (chapter, id of the cell), and "slide" where its slide shows the table again
    ("bits", "md-25"): values.check_widths,
    ("bits", "md-25", "slide"): values.check_widths,
    ("underflow", "md-43"): values.check_what_dies,
    ("underflow", "md-43", "slide"): values.check_what_dies,
    ("scaler", "md-31"): values.check_scaler_defaults,
    ("loop", "md-15"): values.check_loop,
    ("recipes", "md-03"): names.check_recipes,
    ("speed", "md-25"): names.check_causes,
    ("distributed", "md-40"): names.check_ranks,
    ("debugging", "md-26d"): values.check_fixes,
    ("frontiers", "md-54a"): names.check_low_formats,
}
NO_FACTS = {("start", "md-13")}  # paths through the course: test_hygiene.py follows the links
ALTERED = [  # (chapter, words in a cell, what they become)
    ("bits", "65,504", "65,536"),
    ("bits", "2⁻²⁴", "2⁻²⁵"),
    ("bits", "1 − bias − M", "1 − bias"),
    ("underflow", "| small gradients | fp16 |", "| small gradients | fp16, bf16 |"),
    ("underflow", "`pow`", "`relu`"),
    ("underflow", "an `eps` of 1e-4", "an `eps` of 1e-8"),
    ("underflow", "scores.dtype).min", "scores.dtype).tiny"),
    ("scaler", "| 2¹⁶ | 2000 | 1 |", "| 2¹⁶ | 1000 | 1 |"),
    ("scaler", "2¹⁵", "2¹⁴"),
    ("scaler", "Paddle [2.5]", "Paddle [2.4]"),
    ("loop", "halves the scale", "doubles the scale"),
    ("loop", "scaler.step(optimizer)", "optimizer.step()"),
    ("recipes", "scale 1", "nothing scaled"),
    ("recipes", "batch norm is not", "without fp32 batch norm"),
    ("recipes", "Apex O2", "Apex O3"),
    ("recipes", "`PURE_BF16_SR`", "`PURE_BF16_X`"),
    ("recipes", "the **loss** in fp16", "**rounded stochastically**"),
    ("recipes", "| `O1` |", "| `O2` |"),
    ("speed", "causes.host_reads(device)", "causes.reads(device)"),
    ("speed", "freed_memory()", "freed_memory(device)"),
    ("speed", "50,304", "50,300"),
    ("speed", "apex#806", "apex#608"),
    ("speed", "GTX 1650", "RTX 3090"),
    ("distributed", "set_requires_gradient_sync", "set_gradient_sync"),
    ("distributed", "(exercise 4)", "(exercise 6)"),
    ("distributed", "TORCH_FR_BUFFER_SIZE", "TORCH_FLIGHT_BUFFER_SIZE"),
    ("debugging", "65,504", "65,536"),
    ("debugging", "bf16 holds 1e-8", "bf16 holds 1e-48"),
    ("debugging", "torch.where(x > 0, x, 1.0).sqrt()", "torch.where(x > 0, x.sqrt(), 1.0)"),
    ("debugging", "`running_mean`", "`weight`"),
    ("frontiers", "`NVFP4TrainingConfig`", "`NVFP4Config`"),
    ("frontiers", "| inference |", "| stable |"),
    ("frontiers", "`torchao.float8`, stable", "`torchao.float8`, a prototype"),
    ("frontiers", "| none, though", "| yes,"),
]


def rows_of(text):
    """Return the cells of a table in Markdown, its head first, without the line of dashes."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[one.strip() for one in line[1:-1].split("|")] for line in lines if "|---" not in line]


@cache
def tables():
    """Return each table's Markdown by the keys of CHECKS."""
    texts = {}
    for chapter in CHAPTERS:
        book = json.loads((ROOT / "notebooks" / f"{chapter.stem}.ipynb").read_text("utf-8"))
        for cell in book["cells"]:
            text, key = "".join(cell["source"]), (chapter.word, cell["id"])
            if cell["cell_type"] == "markdown" and rows_of(text):
                texts[key] = text
            if (*key, "slide") in CHECKS:
                texts[*key, "slide"] = cell["metadata"]["amp_course"]["slide"]
    return texts


def test_every_table_has_its_check():
    assert set(tables()) == set(CHECKS) | NO_FACTS


@pytest.mark.parametrize("key", CHECKS, ids="-".join)
def test_a_table_says_what_its_source_says(key):
    CHECKS[key](rows_of(tables()[key]))


@pytest.mark.parametrize(("word", "old", "new"), ALTERED)
def test_an_altered_cell_is_found(word, old, new):
    (key,) = (one for one in CHECKS if one[0] == word and len(one) == 2)
    rows = rows_of(tables()[key])
    altered = rows_of(tables()[key].replace(old, new))
    assert altered != rows
    with pytest.raises((AssertionError, TypeError)):  # TypeError: a call with wrong arguments
        CHECKS[key](altered)


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: chapter.stem)
def test_small_figures_in_slides_tables_are_shown_by_the_notebook(chapter):
    """Those of 13 and more are held, in any unit, by tests/slides/test_numbers.py."""
    said, shown = texts(chapter)
    known = {float(one) for one in numbers(shown)}
    lost = []
    for place, text in said:
        for one in numbers(json.dumps(rows_of(text), ensure_ascii=False)):
            digits = len(one.partition(".")[2])
            if "." in one and "e" not in one and float(one) < 13:
                rounded = {round(value, digits) for value in known}
                lost += [(place, one)] * (float(one) not in rounded)
    assert lost == []
