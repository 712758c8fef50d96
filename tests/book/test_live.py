"""Panels that move in the book, in a real browser: by mouse, by keyboard, and where they cannot."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe

from amp_course.course import CHAPTERS
from tests.book.conftest import PANELS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
WCAG = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
STEMS = {chapter.word: chapter.stem for chapter in CHAPTERS}
PATIENCE = 120_000  # milliseconds: Python starts in 4 s on two quiet cores


@pytest.fixture
def asked() -> list[str]:
    """What pages asked for, in order."""
    return []


@pytest.fixture
def page(chromium: Any, asked: list[str]) -> Iterator[Any]:
    page = chromium.new_page(viewport={"width": 1300, "height": 900})
    page.set_default_timeout(PATIENCE)
    page.on("request", lambda request: asked.append(request.url))
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    yield page
    page.close()
    assert faults == []


def test_a_visitor_turns_the_bits_of_2049(address: str, page: Any, asked: list[str]) -> None:
    page.goto(f"{address}/index.html")
    value = page.locator(".amp-value")
    assert value.inner_text() == "0.0999755859375"  # before any Python
    assert not any("pyodide" in one for one in asked)
    number = page.get_by_label("number")
    number.fill("2049")
    number.press("Enter")
    page.locator(".amp-value", has_text="2048").wait_for()
    assert "2049 is not in fp16: rounded to 2048" in page.get_by_role("status").first.inner_text()
    sign = page.get_by_role("button", name="bit 15: sign")
    sign.click()
    page.locator(".amp-value", has_text="−2048").wait_for()
    assert sign.get_attribute("aria-pressed") == "true" and number.input_value() == "-2048"
    sign.press("Tab")
    page.keyboard.press("Space")
    page.locator(".amp-value", has_text="−0.03125").wait_for()
    focused = page.evaluate("document.activeElement.textContent")
    assert focused == "bit 14: exponent, counts 16"  # it is still there after the panel was redrawn
    page.get_by_label("format").select_option(label="bf16 (1 + 8 + 7 bits)")
    page.get_by_role("button", name="bit 14: exponent, counts 128").wait_for()
    assert [one for one in asked if not one.startswith((address, "data:"))] == []
    assert {one.rsplit("/", 1)[1].split("?")[0] for one in asked if "pyodide" in one} == {
        "pyodide.mjs",
        "pyodide.asm.mjs",
        "pyodide.asm.wasm",
        "python_stdlib.zip",
        "pyodide-lock.json",
    }


def test_what_is_no_number_changes_nothing(address: str, page: Any) -> None:
    page.goto(f"{address}/index.html")
    number, told = page.get_by_label("number"), page.get_by_role("status").first
    for text in ("two", "<img src=x onerror=alert(1)>", "1,5", ""):
        number.fill("3")
        number.press("Enter")
        page.locator(".amp-value", has_text="3").wait_for()
        number.fill(text)
        number.press("Enter")
        page.get_by_text("Nothing changed.").wait_for()
        assert text in told.inner_text() and page.locator(".amp-value").inner_text() == "3"
        assert number.input_value() == text and page.locator(".amp-live img").count() == 0


@pytest.mark.parametrize("name", PANELS)
def test_every_live_panel_moves_and_is_for_everyone(
    address: str, page: Any, asked: list[str], name: str
) -> None:
    stem = STEMS[PANELS[name].split(".")[1]]
    page.goto(f"{address}/notebooks/{stem}.html")
    panel = page.locator(f'.amp-live[data-panel="{name}"]')
    before = panel.locator(".amp-view").inner_html()
    control = panel.locator("select:enabled, input[type=range]:enabled").first
    if control.evaluate("one => one.tagName") == "SELECT":
        control.select_option(index=1)
    else:
        control.press("ArrowRight")
    page.wait_for_function(
        "([one, before]) => one.querySelector('.amp-view').innerHTML !== before",
        arg=[panel.element_handle(), before],
    )
    assert panel.locator(".amp-state").inner_text() == ""
    assert [one for one in asked if not one.startswith((address, "data:"))] == []
    for width, theme in ((1300, "dark"), (400, "light")):
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=theme)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        context, options = {"include": [[".amp-live"]]}, {"runOnly": WCAG}
        found = Axe().run(page, context=context, options=options).response["violations"]
        assert {one["id"]: one["nodes"][0]["html"] for one in found} == {}, theme


def test_where_python_cannot_run_the_page_says_why(book: Path, address: str, chromium: Any) -> None:
    page = chromium.new_page()
    page.goto((book / "index.html").as_uri())
    page.locator(".amp-bit").first.click()
    page.get_by_text("This panel cannot move here: a page opened from a folder").wait_for()
    assert page.locator(".amp-value").inner_text() == "0.0999755859375"
    page.add_init_script("delete WebAssembly")
    page.goto(f"{address}/index.html")
    page.locator(".amp-bit").first.click()
    page.get_by_text("this browser has WebAssembly switched off").wait_for()
    page.close()
    plain = chromium.new_page(java_script_enabled=False)
    plain.goto(f"{address}/index.html")
    assert plain.locator(".amp-value").inner_text() == "0.0999755859375"
    assert plain.get_by_text("This panel moves where JavaScript runs.").is_visible()
    plain.close()


def test_a_page_is_light_before_a_panel_is_touched(book: Path) -> None:
    for path in (book / "notebooks").glob("*.html"):
        assert path.stat().st_size < 1_000_000, path.name
