"""Take photographs of panels for stored notebooks, with Chromium."""

from __future__ import annotations

import base64
import io
import re
import shutil
from html import unescape
from pathlib import Path

import nbformat
from PIL import Image

from amp_course.kit import panel_page
from amp_course.kit.errors import CourseError

WIDGET = "application/vnd.jupyter.widget-view+json"
_WIDTH = 1040  # CSS pixels, one dot each: more dots would take half of a notebook's bytes
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


def photograph_panels(book: nbformat.NotebookNode) -> None:
    """Replace the web page in each panel's output by a picture of it, with an alternative text.

    Raises CourseError if there are panels and no Chromium.
    """
    outputs = [
        output
        for cell in book.cells
        for output in cell.get("outputs", ())
        if WIDGET in output.get("data", {})
    ]
    if not outputs:
        return
    browser = find_chromium()
    if browser is None:
        raise CourseError("panels are photographed by Chromium: install it, and run this again")
    from playwright.sync_api import sync_playwright

    sheet = Path(panel_page.__file__).with_suffix(".css").read_text("utf-8")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        page = chromium.new_page(viewport={"width": _WIDTH, "height": 900})
        for output in outputs:
            html = output.data.pop("text/html")
            page.set_content(f"<!doctype html><style>body {{ margin: 0 }} {sheet}</style>{html}")
            panel = page.locator(".amp-panel")
            box = panel.bounding_box() or {"width": 0, "height": 0}
            picture = base64.b64encode(_few_colours(panel.screenshot())).decode()
            output.data["image/png"] = picture
            output.metadata["image/png"] = {
                "width": round(box["width"]),
                "height": round(box["height"]),
                "alt": words_of(html),
            }
        chromium.close()


def find_chromium() -> str | None:
    """Return the path of Chromium or Chrome, or None if there is none."""
    return next(filter(None, map(shutil.which, _BROWSERS)), None)


def words_of(html: str) -> str:
    """Return the alternative text of a panel's page: its title, and those of its pictures or, if it
    has none, its first words.
    """
    title = re.findall(r'role="group" aria-label="([^"]*)"', html)
    words = re.findall(r'<svg role="img" aria-label="([^"]*)"', html)
    words += re.findall(r'<img alt="([^"]*)"', html)
    if not words:
        view = html.partition('class="amp-view"')[2].partition(">")[2]
        words = [" ".join(re.sub("<[^>]*>", " ", view).split()[:30])]
    return unescape(" ".join([*title, ". ".join(text.rstrip(".") for text in words)])) + "."


def _few_colours(picture: bytes) -> bytes:
    file = io.BytesIO()
    with Image.open(io.BytesIO(picture)) as image:
        few = image.convert("RGB").quantize(64, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
        few.save(file, "png", optimize=True)
    return file.getvalue()
