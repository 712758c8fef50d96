"""How cells become slides, on small notebooks: what is shown, what is refused,
and what an author is told.
"""

from __future__ import annotations

import nbformat
import pytest
import slides
from figure_text import has_exponents, smallest_text
from matplotlib.text import Text
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from slide_parts import LEAST, MOST, SlideError, prose, size_of

from amp_course import authoring
from amp_course.course import CHAPTERS

TALK = {"title": "One claim", "minutes": 2, "notes": "What to say."}
# one pixel
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def tagged(cell, kind="slide", **said):
    cell.metadata["slideshow"] = nbformat.from_dict({"slide_type": kind})
    if said:
        cell.metadata["amp_course"] = nbformat.from_dict(said)
    return cell


def printing(code, *outputs, **said):
    return tagged(new_code_cell(code, outputs=list(outputs)), **said)


def one(*cells, opening=False):
    return slides.slide_of(cells, CHAPTERS[1], opening)


def figure(**about):
    return new_output(
        "display_data", {"image/png": PNG}, metadata={"image/png": about} if about else {}
    )


def test_only_tagged_cells_are_on_slides_and_fragments_and_notes_join_the_slide_before():
    book = new_notebook(
        cells=[
            new_markdown_cell("not tagged"),
            tagged(new_markdown_cell("too early"), "fragment"),
            tagged(new_markdown_cell("first"), **TALK),
            tagged(new_markdown_cell("then"), "fragment"),
            tagged(new_markdown_cell("aside"), "notes"),
            tagged(new_markdown_cell("skipped"), "skip"),
            tagged(new_markdown_cell("second"), "subslide", **TALK),
        ]
    )
    groups = list(slides.tagged(book))
    sources = [[cell.source for cell in group] for group in groups]
    assert sources == [["first", "then", "aside"], ["second"]]
    slide = one(*groups[0])
    assert slide.body == '<p>first</p>\n<div class="fragment"><p>then</p>\n</div>'
    assert slide.notes == "What to say.\n\naside"


def test_a_cell_can_make_several_slides():
    cell = tagged(
        new_markdown_cell("source"), **TALK, slide="first", more=[{**TALK, "slide": "second"}]
    )
    assert [one(again).body for again in slides.more_of(cell)] == ["<p>second</p>\n"]


@pytest.mark.parametrize("missing", ["title", "minutes", "notes"])
def test_a_slide_without_title_minutes_or_notes_is_refused(missing):
    said = {key: value for key, value in TALK.items() if key != missing}
    with pytest.raises(SlideError, match=missing):
        one(tagged(new_markdown_cell("text"), **said))


def test_a_code_cell_shows_what_it_printed_and_what_its_author_chose():
    stream = new_output("stream", name="stdout", text="a < b\nsecond\n")
    code = "import torch\n\nfor x in y:\n    print(x)"
    plain = one(printing(code, stream, **TALK)).body
    assert "a &lt; b\nsecond" in plain and "import" not in plain
    chosen = {"show": ["code", "output"], "lines": "4", "output_lines": "2"}
    both = one(printing(code, stream, **TALK, **chosen)).body
    assert 'class="code"' in both
    assert not any(words in both for words in ("torch", "<code>    ", "&lt;"))
    own = one(printing(code, stream, **TALK, slide="Its *own* words.")).body
    assert own == "<p>Its <em>own</em> words.</p>\n"


def test_code_is_as_large_as_fits_and_refused_where_nobody_could_read_it():
    assert size_of(["x = 1"]) == MOST
    assert LEAST <= size_of(["x" * 110]) < size_of(["x" * 60])
    for text in ("x" * 150, "x\n" * 30):
        with pytest.raises(SlideError, match="last row"):
            size_of([text])


def test_a_figure_has_a_slide_of_its_own_and_words():
    cell = printing("f()", figure(alt="Bars of two times.", width=792, height=264), **TALK)
    assert 'data-inches="7.20" data-points="8"' in one(cell).body and one(cell).kind == "figure"
    with pytest.raises(SlideError, match="of its own"):
        one(cell, tagged(new_markdown_cell("and a text"), "fragment"))
    with pytest.raises(SlideError, match="cannot see"):
        one(printing("f()", figure(), **TALK))


def test_exercises_come_from_the_chapter_with_their_minutes():
    slide = one(tagged(new_markdown_cell("prose"), minutes=1, notes="Go.", exercises=[1, 2]))
    first, second, *_ = CHAPTERS[1].exercises()
    assert slide.title == "Now you: exercises 1 and 2"
    assert slide.exercise_minutes == first.minutes + second.minutes
    assert first.title in slide.body and "prose" not in slide.body
    with pytest.raises(SlideError, match="no exercises"):
        one(tagged(new_markdown_cell("prose"), minutes=1, notes="Go.", exercises=[99]))
    for numbers, listed in (((5,), "5"), ((1, 2, 3), "1 to 3"), ((1, 2, 4), "1, 2 and 4")):
        assert slides.listed(numbers) == listed


def test_links_are_plain_words_on_a_slide():
    assert prose("see [chapter 05](05_scaler.ipynb) and `a[0](b)`", inline=True).startswith(
        "see chapter 05 and "
    )
    assert slides.raised("up to 2^(M + 1), not 2^M") == "up to 2<sup>M + 1</sup>, not 2^M"


def test_a_wrong_chapter_is_named(capsys, tmp_path):
    assert slides.main(["speling", "--out", str(tmp_path)]) == 1
    assert "there is no chapter 'speling'" in capsys.readouterr().err


def test_some_chapters_can_be_made_alone(tmp_path, capsys):
    assert slides.main(["1", "--out", str(tmp_path)]) == 0
    assert [path.name for path in sorted(tmp_path.glob("*.html"))] == ["01_bits.html", "index.html"]
    assert (tmp_path / "index.html").read_text("utf-8").count('href="0') == 1


def test_what_the_slides_say_survives_a_run_of_the_notebook_and_stays_out_of_exercises():
    cell = printing("1", **TALK, tags=["x"])
    kept = authoring.tidy(new_notebook(cells=[cell])).cells[0].metadata
    assert kept["amp_course"]["notes"] == "What to say."
    assert kept["slideshow"]["slide_type"] == "slide"
    assert not authoring.make_exercise(new_notebook(cells=[cell])).cells[0].metadata


def drawn():
    """Figures that take no time to draw, with the code of a cell that would draw them."""
    from amp_course.bits import FORMATS, FP16
    from amp_course.bits.figures import layouts_figure, ulp_figure
    from amp_course.bits.survey import gaps
    from amp_course.underflow.figures import running_sums_figure

    exponents = range(-30, 18)
    yield "bits", "layouts_figure(x)", layouts_figure(FORMATS[1:]), False
    yield "bits", "ulp_figure(x)", ulp_figure({FP16: gaps(FP16, exponents)}, exponents), True
    sums = running_sums_figure({"fp16": [1.0, 2.0]}, exact=[1, 2])
    yield "underflow", "running_sums_figure(x)", sums, False


def test_the_smallest_text_read_from_the_code_is_the_smallest_that_is_drawn():
    for chapter, code, picture, exponents in drawn():
        picture.draw_without_rendering()
        shown = [one for one in picture.findobj(Text) if one.get_text().strip()]
        sizes = [one.get_fontsize() for one in shown if one.get_visible()]
        assert smallest_text(code, chapter) == min(sizes), code
        assert has_exponents(code, chapter) == exponents, code
