"""Use a notebook in JupyterLab as a person does: menus, keys, and looking at what is there."""

import time
from pathlib import Path

from playwright.sync_api import Locator, Page, expect

MINUTE = 60_000


def open_notebook(page: Page, url: str) -> None:
    """Open a notebook and wait for its cells and its kernel."""
    page.goto(url)
    expect(page.locator(".jp-Notebook .jp-Cell").first).to_be_visible(timeout=MINUTE)
    expect(page.locator(".jp-Notebook-ExecutionIndicator[data-status=idle]").first).to_be_visible(timeout=MINUTE)
    page.wait_for_timeout(1500)  # a restart in the first second, before the kernel's channels stand, can lose the run


def run_all(page: Page) -> float:
    """Restart and run all cells from the menu, wait until the last has its number; return the seconds that took.

    Now and then JupyterLab loses the run that it has just restarted for, and the cells wait for ever. A reader would ask
    again, and so does this, once.
    """
    prompts = code_cells(page).locator(".jp-InputPrompt")
    began = _restart_and_run(page)
    done = "[" + str(prompts.count()) + "]:"
    try:
        expect(prompts.last).to_have_text(done, timeout=1.5 * MINUTE)
    except AssertionError:
        print("the run was lost after 90 s; once more")
        began = _restart_and_run(page)
        expect(prompts.last).to_have_text(done, timeout=3 * MINUTE)
    return time.monotonic() - began


def _restart_and_run(page: Page) -> float:
    page.get_by_role("menubar").get_by_text("Run", exact=True).click()
    page.get_by_text("Restart Kernel and Run All Cells…", exact=True).click()
    began = time.monotonic()
    page.get_by_role("button", name="Confirm Kernel Restart").click()
    # The stored numbers are gone.
    expect(code_cells(page).locator(".jp-InputPrompt").last).to_have_text("[*]:", timeout=MINUTE)
    return began


def code_cells(page: Page) -> Locator:
    return page.locator(".jp-Notebook .jp-CodeCell")


def errors(page: Page) -> Locator:
    """Return the outputs that show an exception."""
    return page.locator(".jp-OutputArea-output").filter(has_text="Traceback (most recent call last)")


def cell_with(page: Page, text: str) -> Locator:
    """Return the one code cell whose input holds `text`."""
    return code_cells(page).filter(has=page.locator(".jp-InputArea-editor", has_text=text)).first


def retype(page: Page, cell: Locator, text: str) -> None:
    """Replace a cell's code by typing, and run it."""
    cell.locator(".cm-content").click()
    page.keyboard.press("Control+A")
    page.keyboard.type(text)
    page.keyboard.press("Shift+Enter")


def use_theme(page: Page, name: str) -> None:
    """Choose a theme from the menu."""
    page.get_by_role("menubar").get_by_text("Settings", exact=True).click()
    page.get_by_text("Theme", exact=True).click()
    page.get_by_text(name, exact=True).click()
    expect(page.locator("body")).to_have_attribute("data-jp-theme-name", name)


def portray(page: Page, panel: Locator, folder: Path, name: str) -> None:
    """Save what people look at: the window around the panel, the whole page at two widths, both again in the dark theme."""
    for theme, suffix, widths in (("Light", "", (1500, 1000)), ("Dark", "_dark", (1500,))):
        use_theme(page, f"JupyterLab {theme}")
        panel.evaluate("cell => cell.scrollIntoView({block: 'start'})")
        page.wait_for_timeout(300)
        page.screenshot(path=str(folder / f"{name}_window{suffix}.png"))
        for width in widths:
            picture(page, folder / f"{name}{suffix}_{width}.png", width)
    use_theme(page, "JupyterLab Light")


def save(page: Page) -> None:
    page.keyboard.press("Escape")
    page.keyboard.press("Control+S")
    page.wait_for_timeout(500)


def picture(page: Page, path, width: int) -> None:
    """Save the whole notebook as a picture, as wide as a window of `width` shows it."""
    page.set_viewport_size({"width": width, "height": 1000})
    page.wait_for_timeout(500)
    height = page.locator(".jp-WindowedPanel-outer").evaluate("element => element.scrollHeight")
    page.set_viewport_size({"width": width, "height": min(int(height) + 150, 15_000)})
    page.locator(".jp-WindowedPanel-outer").evaluate("element => element.scrollTo(0, 0)")
    page.wait_for_timeout(700)
    page.screenshot(path=str(path))
    page.set_viewport_size({"width": width, "height": 1000})
