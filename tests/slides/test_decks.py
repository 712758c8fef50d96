"""The decks as a speaker finds them: complete, legible from the last row,
and asking no other host for anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe

from amp_course.course import CHAPTERS, Chapter
from tests.slides.measuring import LEAST, LEAST_RAISED, measure

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SIZES = [(1920, 1080), (1280, 720)]
WCAG = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
LIMIT = 6 * 2**20
MINUTE_A_SLIDE = (0.5, 5)
TALK = (0.5, 1.0)  # of the minutes that reading and running the chapter takes


class Page(HTMLParser):
    """The slides of a deck, with their notes and their pictures, and whatever the page loads."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.language: str | None = None
        self.title = self.heading = ""
        self.slides: list[dict[str, Any]] = []
        self.loads: list[str] = []
        self.inside: list[str] = []
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag == "html":
            self.language = found.get("lang")
        if tag == "section":
            self.slides.append(
                {"seconds": float(found["data-timing"] or 0), "notes": "", "alts": [], "footer": ""}
            )
        if tag == "img":
            self.slides[-1]["alts"].append(found.get("alt"))
        if tag in ("img", "script") and found.get("src"):
            self.loads.append(found["src"] or "")
        if tag == "link" and found.get("href"):
            self.loads.append(found["href"] or "")
        if tag in ("title", "h1", "aside", "footer"):
            self.inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self.inside and tag == self.inside[-1]:
            self.inside.pop()

    def handle_data(self, data: str) -> None:
        where = self.inside[-1] if self.inside else ""
        if where == "title":
            self.title += data
        elif where == "h1":
            self.heading += data
        elif where in ("aside", "footer"):
            self.slides[-1]["notes" if where == "aside" else "footer"] += data


@pytest.fixture(scope="session")
def pages(decks: Path) -> dict[Chapter, Page]:
    return {chapter: Page(decks / f"{chapter.stem}.html") for chapter in CHAPTERS}


def test_every_chapter_has_a_talk_and_all_of_it_is_light(
    decks: Path, pages: dict[Chapter, Page]
) -> None:
    for chapter, page in pages.items():
        assert 8 <= len(page.slides) <= 17, chapter
        assert page.language == "en" and chapter.question in page.heading
        assert page.title.startswith(chapter.stem[:2])
    assert len({page.title for page in pages.values()}) == len(CHAPTERS)
    licence = (decks / "reveal" / "LICENSE").read_text("utf-8")
    assert "MIT" in licence or "Permission is hereby granted" in licence
    assert sum(file.stat().st_size for file in decks.rglob("*") if file.is_file()) < LIMIT


def test_every_slide_says_where_it_is_what_to_say_and_for_how_long(
    pages: dict[Chapter, Page],
) -> None:
    for chapter, page in pages.items():
        for number, slide in enumerate(page.slides, 1):
            place = (chapter.stem, number)
            assert f"slide {number} of {len(page.slides)}" in slide["footer"], place
            assert chapter.stem[:2] in slide["footer"], place
            minutes = r"[\d.]+ minutes?(, then \d+ for the exercises)?\."
            assert re.match(minutes, slide["notes"]), place
            assert len(slide["notes"].split()) >= 20, place


def test_minutes_add_up_and_every_exercise_has_its_place(
    decks: Path, pages: dict[Chapter, Page]
) -> None:
    """The talk takes no longer than reading the chapter, and each exercise is on one slide,
    with the minutes of its card.
    """
    index = (decks / "index.html").read_text("utf-8")
    for chapter, page in pages.items():
        text = (decks / f"{chapter.stem}.html").read_text("utf-8")
        talk = [float(one) for one in re.findall(r"<p><b>([\d.]+) minutes?[.,]", text)]
        least, most = (share * chapter.minutes for share in TALK)
        assert least <= sum(talk) <= most, chapter
        assert all(MINUTE_A_SLIDE[0] <= one <= MINUTE_A_SLIDE[1] for one in talk), chapter
        work = sum(exercise.minutes for exercise in chapter.exercises())
        assert sum(slide["seconds"] for slide in page.slides) == 60 * (sum(talk) + work), chapter
        listed = [int(one) for one in re.findall(r"<li><b>(\d+)</b><span>", text)]
        assert listed == [exercise.number for exercise in chapter.exercises()], chapter
        assert f'href="{chapter.stem}.html"' in index
        assert f"<td>{len(page.slides)}</td><td>{sum(talk):g}</td><td>{work}</td>" in index


def test_nothing_is_loaded_from_elsewhere(decks: Path, pages: dict[Chapter, Page]) -> None:
    for chapter, page in pages.items():
        for one in page.loads:
            assert one.startswith("data:") or (decks / one).is_file(), (chapter.stem, one)
    for path in [*decks.rglob("*.css"), *decks.glob("*.html")]:
        text = re.sub(r'src="data:[^"]*"', "", path.read_text("utf-8"))
        assert not re.search(r"url\(\s*['\"]?(https?:)?//|@import", text), path.name


def test_every_figure_has_its_words(pages: dict[Chapter, Page]) -> None:
    slides = [slide for page in pages.values() for slide in page.slides]
    alts = [alt for slide in slides for alt in slide["alts"]]
    assert len(alts) >= 30
    assert [alt for alt in alts if not alt or len(alt) < 20] == []


def shown(page: Any, decks: Path, chapter: Chapter) -> Iterator[int]:
    """Show each slide of a deck in turn."""
    page.goto((decks / f"{chapter.stem}.html").as_uri())
    page.wait_for_function("Reveal.isReady()")
    for number in range(page.evaluate("Reveal.getTotalSlides()")):
        page.evaluate(f"Reveal.slide({number})")
        page.wait_for_function(f"Reveal.getIndices().h === {number}")
        yield number + 1


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_nothing_sticks_out_of_a_slide_and_all_is_legible_from_the_last_row(
    size: tuple[int, int], decks: Path, chromium: Any
) -> None:
    """Sizes are those of a slide of 1920 × 1080, whatever the window:
    see tools/slide_parts.py for the two limits. Meanwhile no other host is asked for anything.
    """
    page = chromium.new_page(viewport=dict(zip(("width", "height"), size, strict=True)))
    asked: list[str] = []
    errors: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    out, small, pictures = [], [], 0
    for chapter in CHAPTERS:
        for number in shown(page, decks, chapter):
            found = measure(page)
            place = (chapter.stem, number)
            assert found["place"].endswith(
                f"slide {number} of {page.evaluate('Reveal.getTotalSlides()')}"
            )
            out += [(place, one) for one in found["out"]]
            small += [(place, found["least"])] if found["least"][0] < LEAST else []
            if found["least_raised"] and found["least_raised"][0] < LEAST_RAISED:
                small.append((place, found["least_raised"]))
            assert all(one["loaded"] and one["perInch"] > 0 for one in found["figures"]), place
            pictures += len(found["figures"])
    page.goto((decks / "index.html").as_uri())
    page.close()
    assert (out, small, errors) == ([], [], [])
    assert [one for one in asked if not one.startswith((decks.as_uri(), "data:"))] == []
    assert pictures >= 30


def test_a_deck_is_at_home_on_the_keyboard(
    decks: Path, pages: dict[Chapter, Page], chromium: Any
) -> None:
    page = chromium.new_page(viewport={"width": 1280, "height": 720})
    page.goto((decks / "01_bits.html").as_uri())
    page.wait_for_function("Reveal.isReady()")
    last = len(pages[CHAPTERS[1]].slides) - 1
    for key, place in {"ArrowRight": 1, "Space": 2, "End": last, "Home": 0}.items():
        page.keyboard.press(key)
        page.wait_for_function(f"Reveal.getIndices().h === {place}")
    assert page.evaluate("Reveal.getConfig().transition") == "none"
    page.close()


def test_notes_are_in_the_speaker_view_and_in_print(
    decks: Path, pages: dict[Chapter, Page], chromium: Any
) -> None:
    address = (decks / "05_scaler.html").as_uri()
    slides = pages[CHAPTERS[5]].slides
    page = chromium.new_page(viewport={"width": 1280, "height": 720})
    page.goto(address)
    page.wait_for_function("Reveal.isReady()")
    assert page.locator("aside.notes >> visible=true").count() == 0
    with page.expect_popup() as opened:
        page.keyboard.press("s")
    opened.value.locator(".speaker-controls-notes .value").get_by_text(
        slides[0]["notes"].split(".")[1].strip()
    ).wait_for()
    opened.value.close()
    page.goto(address + "?print-pdf")
    page.wait_for_function("Reveal.isReady() && document.querySelectorAll('.pdf-page').length > 0")
    printed = page.locator(".speaker-notes-pdf")
    assert printed.count() == len(slides) and page.locator(".pdf-page").count() == len(slides)
    told = [one.split()[:8] for one in printed.all_text_contents()]
    assert told == [slide["notes"].split()[:8] for slide in slides]
    heights = printed.evaluate_all("all => all.map(one => one.scrollHeight)")
    assert max(heights) <= 1082
    page.close()


def test_axe_finds_no_violation_of_wcag_22_aa(decks: Path, chromium: Any) -> None:
    """Every slide of every deck, and the index; that the contrast of all text was measured, too."""
    axe = Axe()
    page = chromium.new_page(viewport={"width": 1280, "height": 720})

    def faults(place: tuple[str, int]) -> dict[tuple[str, int, str], str]:
        done = axe.run(page, options={"runOnly": WCAG}).response
        wrong = done["violations"]
        assert any(one["id"] == "color-contrast" for one in done["passes"]) or wrong, place
        for one in (one for one in done["incomplete"] if one["id"] == "color-contrast"):
            keys = {check["data"]["messageKey"] for check in one["nodes"][0]["any"]}
            if keys - {"nonBmp"}:  # a span of code that is a mere arrow: axe measures letters only
                wrong.append(one)
        return {(*place, one["id"]): one["nodes"][0]["html"][:200] for one in wrong}

    found = {}
    for chapter in CHAPTERS:
        for number in shown(page, decks, chapter):
            found |= faults((chapter.stem, number))
    page.goto((decks / "index.html").as_uri())
    found |= faults(("index", 0))
    page.close()
    assert found == {}
