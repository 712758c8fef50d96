"""Pictures of notebooks and panels, for people to look at."""

import io
from pathlib import Path

from PIL import Image
from playwright.sync_api import Locator, Page, expect

from tests.browser.notebook import choose, settle

WIDTHS = (1500, 1000)
THEMES = {"Light": "", "Dark": "_dark"}


def portray(page: Page, panel: Locator | None, folder: Path, name: str) -> None:
    """Save the whole notebook at two widths, light and dark;
    of a panel, the window around it as well.
    """
    for theme, suffix in THEMES.items():
        use_theme(page, f"JupyterLab {theme}")
        if panel is not None:
            panel.evaluate("cell => cell.scrollIntoView({block: 'start'})")
            settle(page)
            page.screenshot(path=str(folder / f"{name}_window{suffix}.png"))
        for width in WIDTHS:
            picture(page, folder / f"{name}{suffix}_{width}.png", width)
    use_theme(page, "JupyterLab Light")


def picture(page: Page, path: Path, width: int) -> None:
    """Save the whole notebook as a picture, as wide as a window of `width` shows it."""
    page.set_viewport_size({"width": width, "height": 1000})
    settle(page)
    height = page.locator(".jp-WindowedPanel-outer").evaluate("element => element.scrollHeight")
    page.set_viewport_size({"width": width, "height": min(int(height) + 150, 15_000)})
    page.locator(".jp-WindowedPanel-outer").evaluate("element => element.scrollTo(0, 0)")
    settle(page)
    page.screenshot(path=str(path))
    page.set_viewport_size({"width": 1500, "height": 1000})


def few_colours(screenshot: bytes, like: Image.Image | None = None) -> Image.Image:
    """Return a picture of 128 colours, or of those of another, which takes half the bytes."""
    image = Image.open(io.BytesIO(screenshot)).convert("RGB")
    return image.quantize(128, Image.Quantize.MAXCOVERAGE, palette=like, dither=Image.Dither.NONE)


def use_theme(page: Page, name: str) -> None:
    """Choose a theme from the menu."""
    choose(page, "Settings", "Theme", name)
    expect(page.locator("body")).to_have_attribute("data-jp-theme-name", name)
