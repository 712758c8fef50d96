"""The book as readers find it: every page there, every link leading somewhere,
nothing asked of another host.
"""

from __future__ import annotations

import importlib
import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag

import nbformat
import pytest
from axe_playwright_python.sync_playwright import Axe

from amp_course.authoring.photographs import WIDGET
from amp_course.course import CHAPTERS, available
from tests.book.conftest import PANELS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # it builds the whole book
ROOT = Path(__file__).resolve().parents[2]
LIMIT = 25_000_000  # bytes, of which Pyodide is 13 million
WCAG = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]


class Page(HTMLParser):
    """The links, pictures and ids of a page, and the text of its article."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.ids: set[str] = set()
        self.alts: list[str] = []
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.ids |= {value for name, value in attrs if name == "id" and value}
        if tag == "a" and found.get("href"):
            self.links.append(found["href"] or "")
        if tag in ("img", "script") and found.get("src"):
            self.loads.append(found["src"] or "")
        if tag == "link" and found.get("rel") != "canonical" and found.get("href"):
            self.loads.append(found["href"] or "")
        if tag == "img":
            self.alts.append(found.get("alt") or "")


@pytest.fixture(scope="session")
def pages(book: Path) -> dict[Path, Page]:
    """Every page but the slides, which have tests of their own."""
    return {path: Page(path) for path in book.rglob("*.html") if "slides" not in path.parts}


def test_every_chapter_is_there_with_its_exercises_and_all_of_it_is_light(book: Path) -> None:
    for chapter in available():
        assert (book / "notebooks" / f"{chapter.stem}.html").is_file()
        assert (book / "api" / f"{chapter.word}.html").is_file()
        if (ROOT / "exercises" / f"{chapter.stem}.ipynb").is_file():
            assert (book / "exercises" / f"{chapter.stem}.html").is_file()
    more = "sheet mistakes benchmarks machines elsewhere tour setup teaching keyboard notebook-ci"
    for name in ("index", "search", *(f"more/{one}" for one in more.split())):
        assert (book / f"{name}.html").is_file()
    assert sum(file.stat().st_size for file in book.rglob("*") if file.is_file()) < LIMIT


def test_every_link_leads_somewhere(pages: dict[Path, Page]) -> None:
    lost = []
    for path, page in pages.items():
        for link in page.links:
            if re.match(r"https?:|mailto:", link):
                continue
            target, fragment = urldefrag(link)
            file = (path.parent / unquote(target)).resolve() if target else path
            ids = pages[file].ids if fragment and file in pages else {unquote(fragment)}
            if not file.is_file() or unquote(fragment) not in ids:
                lost.append((path.name, link))
    assert lost == []


def test_nothing_is_loaded_from_elsewhere(pages: dict[Path, Page]) -> None:
    loads = [(path.name, one) for path, page in pages.items() for one in page.loads]
    assert [one for one in loads if re.match(r"(https?:)?//", one[1])] == []


def test_every_figure_has_its_words_and_every_panel_moves_or_says_why_not(
    book: Path, pages: dict[Path, Page]
) -> None:
    for chapter in available():
        path = book / "notebooks" / f"{chapter.stem}.html"
        cells = nbformat.read(ROOT / "notebooks" / f"{chapter.stem}.ipynb", as_version=4).cells
        outputs = [one for cell in cells if cell.cell_type == "code" for one in cell.outputs]
        panels = [one for one in outputs if WIDGET in one.get("data", {})]
        names = [one.data["text/plain"].rstrip("()") for one in panels]
        moving = [name for name in names if name in PANELS]
        pictures = [one for one in outputs if "image/png" in one.get("data", {})]
        words = [
            " ".join(one.metadata["image/png"]["alt"].split())
            for one in pictures
            if one.data["text/plain"].rstrip("()") not in PANELS
        ]
        text = path.read_text("utf-8")
        said = [" ".join(alt.split()) for alt in pages[path].alts]
        assert [one for one in said if one in words] == words
        assert re.findall('class="amp-live" data-panel="([^"]*)"', text) == moving
        assert text.count("This is a picture: the panel") == len(names) - len(moving)


def test_from_a_chapter_to_its_notebook_exercises_and_slides(book: Path) -> None:
    for chapter in available():
        text = (book / "notebooks" / f"{chapter.stem}.html").read_text("utf-8")
        links = re.findall(r'href="([^"#]+)"', text)
        files = [(book / "notebooks" / link).resolve() for link in links if ":" not in link]
        assert (book / "slides" / f"{chapter.stem}.html").resolve() in files
        assert (book / "exercises" / f"{chapter.stem}.html").resolve() in files
        (notebook,) = [file for file in files if file.suffix == ".ipynb"]
        downloaded = nbformat.read(notebook, as_version=4).cells
        stored = nbformat.read(ROOT / "notebooks" / notebook.name, as_version=4).cells
        assert [cell.source for cell in downloaded] == [cell.source for cell in stored]
        assert not any(cell.get("outputs") for cell in downloaded)


def test_no_picture_has_a_file_name_for_words(pages: dict[Path, Page]) -> None:
    alts = [alt for page in pages.values() for alt in page.alts]
    assert len(alts) > 65
    named = r"\w\.(png|gif|svg|jpe?g)"
    assert [alt for alt in alts if len(alt.split()) < 3 or re.search(named, alt)] == []


def test_the_published_book_says_what_to_clone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    book_pages = importlib.import_module("book_pages")
    with_address = book_pages.with_address
    index = (ROOT / "docs" / "book" / "index.md").read_text("utf-8")
    monkeypatch.setenv("GITHUB_REPOSITORY", "ada/amp_course")
    monkeypatch.delenv("GITHUB_SERVER_URL", raising=False)
    assert "git clone https://github.com/ada/amp_course amp_course &&" in with_address(index)
    links = book_pages.chapter_links(CHAPTERS[5])
    assert "https://github.com/ada/amp_course/blob/main/notebooks/05_scaler.ipynb" in links
    assert "colab.research.google.com/github/ada/amp_course/blob/main/notebooks/05" in links
    assert book_pages.site() == "https://ada.github.io/amp_course/"
    monkeypatch.delenv("GITHUB_REPOSITORY")
    for remote, address in {
        "git@github.com:ada/amp_course.git": "https://github.com/ada/amp_course",
        "https://git.example.org/ml/amp.git": "https://git.example.org/ml/amp",
        "/srv/git/amp_course": "",
    }.items():
        done = subprocess.CompletedProcess([], 0, stdout=f"{remote}\n")
        monkeypatch.setattr(book_pages.subprocess, "run", lambda *_, done=done, **__: done)
        assert book_pages.address() == address
    assert with_address(index) == index and "git clone <the address of the repository>" in index


def test_the_front_page_says_how_long_each_chapter_takes(book: Path) -> None:
    text = (book / "index.html").read_text("utf-8")
    for chapter in CHAPTERS:
        assert f"{chapter.minutes} + {sum(one.minutes for one in chapter.exercises())} min" in text
    assert re.search(r"About \d+ hours of reading and \d+ hours of exercises", text)


def test_blanks_stay_blank_and_cards_are_shown(book: Path) -> None:
    for chapter in CHAPTERS:
        path = book / "exercises" / f"{chapter.stem}.html"
        if path.is_file():
            text = path.read_text("utf-8")
            assert text.count("your code here") >= 1
            assert text.count("difficulty") >= len(chapter.exercises())
            assert "BEGIN SOLUTION" not in text and "✔" not in text


def test_pages_fit_a_phone_ask_nobody_and_can_be_searched(address: str, chromium: Any) -> None:
    page = chromium.new_page(viewport={"width": 400, "height": 900})
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    names = ["index", "more/sheet", "more/mistakes", "more/benchmarks", "api/frontiers"]
    names += [
        f"{folder}/{chapter.stem}"
        for chapter in available()
        for folder in ("notebooks", "exercises")
    ]
    for name in names:
        if page.goto(f"{address}/{name}.html").status == 200:
            assert page.evaluate("document.documentElement.scrollWidth") <= 400, name
    for sought, first in {
        "loss is NaN": "11 · Debugging",
        "gradient clipping": "07 · Patterns",
        "faster on my machine": "09 · Speed",
    }.items():
        page.goto(f"{address}/search.html?q={sought.replace(' ', '+')}")
        page.locator(".search-summary", has_text="found").wait_for()
        assert page.locator("#search-results li > a").first.inner_text() == first
    assert [one for one in asked if not one.startswith((address, "data:"))] == []
    page.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_no_violation_of_wcag_22_aa(
    theme: str, book: Path, address: str, chromium: Any
) -> None:
    """Every page there is, in one of the two themes."""
    axe = Axe()
    page = chromium.new_page(color_scheme=theme)
    others = {"_static", "slides"}
    pages = [path.relative_to(book) for path in book.rglob("*.html") if not others & {*path.parts}]
    names = sorted(str(path.with_suffix("")) for path in pages)
    assert len(names) > 45
    found = {}
    for name in names[theme == "dark" :: 2]:
        page.goto(f"{address}/{name}.html")
        assert page.evaluate("document.documentElement.dataset.theme") == theme
        violations = axe.run(page, options={"runOnly": WCAG}).response["violations"]
        found |= {(name, one["id"]): one["nodes"][0]["html"] for one in violations}
    page.close()
    assert found == {}
