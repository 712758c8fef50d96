"""Use a notebook in JupyterLab as a person does: menus, keys, and looking at what is there.

Nothing here sleeps: each step waits for what a person would wait to see. JupyterLab can take the
focus from one key to the next, most of all on a busy machine, so each key is sent to its element,
and what a lost focus undoes is tried again.
"""

import time
from collections.abc import Callable

from playwright.sync_api import Error, Locator, Page, expect

MINUTE = 60_000
SOON = 15_000  # milliseconds that one try may wait


def try_again(page: Page, action: Callable[[], None], tries: int = 5) -> None:
    """Do what a lost focus can undo; if it fails, close what it has opened and do it again."""
    for _ in range(tries - 1):
        try:
            return action()
        except (AssertionError, Error):
            page.keyboard.press("Escape")
    action()


def open_notebook(page: Page, url: str) -> None:
    """Open a notebook and wait for its cells and its kernel."""
    page.goto(url)
    expect(page.locator(".jp-Notebook .jp-Cell").first).to_be_visible(timeout=2 * MINUTE)
    # The status bar, not the notebook's own indicator, which says idle even before there is a
    # kernel: JupyterLab drops a run that is asked for by then.
    expect(page.locator("#jp-main-statusbar").get_by_text("| Idle")).to_be_visible(
        timeout=2 * MINUTE
    )


def run_all(page: Page) -> None:
    """Run all cells of a notebook that was never run, and wait until the last has its number."""
    choose(page, "Run", "Run All Cells")
    _wait_for_the_last(page)


def restart_and_run_all(page: Page) -> float:
    """Restart and run all cells from the menu, wait until the last has its number;
    return the seconds that took.
    """
    choose(page, "Run", "Restart Kernel and Run All Cells…")
    began = time.monotonic()
    page.get_by_role("button", name="Confirm Kernel Restart").click()
    expect(_prompts(page).last).to_have_text("[*]:", timeout=MINUTE)  # the stored numbers are gone
    _wait_for_the_last(page)
    return time.monotonic() - began


def _prompts(page: Page) -> Locator:
    return code_cells(page).locator(".jp-InputPrompt")


def _wait_for_the_last(page: Page) -> None:
    prompts = _prompts(page)
    expect(prompts.last).to_have_text(f"[{prompts.count()}]:", timeout=10 * MINUTE)


def choose(page: Page, menu: str, *entries: str) -> None:
    """Choose an entry of the menu bar: "Run", "Run All Cells"."""

    def action() -> None:
        page.get_by_role("menubar").get_by_text(menu, exact=True).click()
        for entry in entries:
            page.get_by_text(entry, exact=True).click(timeout=SOON)

    try_again(page, action)


def code_cells(page: Page) -> Locator:
    return page.locator(".jp-Notebook .jp-CodeCell")


def outputs(page: Page) -> Locator:
    return page.locator(".jp-OutputArea-output")


def errors(page: Page) -> Locator:
    """Return the outputs that show an exception of the kernel's,
    and not one that a script has printed.
    """
    raised = page.locator('[data-mime-type="application/vnd.jupyter.stderr"]')
    return outputs(page).and_(raised).filter(has_text="Traceback (most recent call last)")


def cell_with(page: Page, text: str) -> Locator:
    """Return the first code cell whose input holds `text`."""
    return code_cells(page).filter(has=page.locator(".jp-InputArea-editor", has_text=text)).first


def retype(page: Page, cell: Locator, text: str) -> None:
    """Replace a cell's code, and run it."""
    cell.locator(".cm-content").fill(text)
    cell_with(page, text.splitlines()[0]).locator(".cm-content").press("Shift+Enter")


def press(page: Page, control: Locator, *keys: str) -> None:
    """Reach a control and press keys on it."""
    for key in keys:
        control.press(key)


def choose_next(page: Page, menu: Locator) -> None:
    """Choose a menu's next entry by keyboard, as the chapters tell: Space opens the menu."""
    press(page, menu, "Space", "ArrowDown", "Enter")


def save(page: Page) -> None:
    """Save the notebook, and wait until it is saved: the mark on its tab goes."""
    changed = page.locator("#jp-main-dock-panel .lm-TabBar-tab.jp-mod-dirty")
    expect(changed).to_have_count(1)

    def action() -> None:
        page.keyboard.press("Escape")
        page.keyboard.press("Control+S")
        expect(changed).to_have_count(0, timeout=SOON)

    try_again(page, action)


def settle(page: Page) -> None:
    """Wait until the notebook is laid out: five frames in a row in which it keeps its size and
    place.
    """
    page.evaluate("""async () => {
        await document.fonts.ready;
        const notebook = document.querySelector(".jp-WindowedPanel-outer");
        for (let last = "", calm = 0; calm < 5;) {
            await new Promise(requestAnimationFrame);
            const now = [notebook.scrollHeight, notebook.clientWidth, notebook.scrollTop].join();
            calm = now === last ? calm + 1 : 0;
            last = now;
        }
    }""")
