"""Use a notebook in JupyterLab as a person does: menus, keys, and looking at what is there."""

import time

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
    for last_try in (False, True):
        page.get_by_role("menubar").get_by_text("Run", exact=True).click()
        page.get_by_text("Restart Kernel and Run All Cells…", exact=True).click()
        began = time.monotonic()
        page.get_by_role("button", name="Confirm Kernel Restart").click()
        expect(prompts.last).to_have_text("[*]:", timeout=MINUTE)  # the stored numbers are gone
        try:
            expect(prompts.last).to_have_text(
                "[" + str(prompts.count()) + "]:", timeout=(3 if last_try else 1.5) * MINUTE
            )
            return time.monotonic() - began
        except AssertionError:
            if last_try:
                raise
            print("the run was lost after 90 s; once more")
    raise AssertionError("not reached")


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
