"""The course without a mouse: from the start page through chapter 02 to a correct exercise,
by keys alone.
"""

import re

from playwright.sync_api import expect

from tests.browser.notebook import MINUTE, SOON, errors, try_again

# Trusted events come from a device. Enter on a link makes a click, too, but one of no button: its
# detail is 0.
LISTEN = """
window.byMouse = [];
for (const type of ["pointerdown", "pointermove", "mousedown", "mouseup", "mousemove", "wheel", "touchstart", "click"])
    window.addEventListener(type, event => {
        if (event.isTrusted && (type !== "click" || event.detail > 0)) window.byMouse.push(type);
    }, { capture: true, passive: true });
"""
# A notebook that opens takes the focus more than once. Wait until half a second of frames has left
# it where it is.
KEEPS_FOCUS = """async () => {
    for (let calm = 0, last = null; calm < 30; calm = document.activeElement === last ? calm + 1 : 0) {
        last = document.activeElement;
        await new Promise(requestAnimationFrame);
    }
}"""
ACTIVE = ".jp-NotebookPanel:not(.lm-mod-hidden) .jp-Notebook .jp-Cell.jp-mod-active"
MOST = 80  # of keys in a row, to get somewhere


def press_until(page, key, is_there):
    for _ in range(MOST):
        if is_there():
            return
        page.keyboard.press(key)
    raise AssertionError(f"{key} does not lead there")


def go_to_cell(page, text):
    """Move down from cell to cell until one with a text is active."""
    press_until(page, "ArrowDown", lambda: page.locator(ACTIVE).filter(has_text=text).count())


def tab_to(page, target):
    press_until(
        page, "Tab", lambda: target.evaluate("element => element === document.activeElement")
    )


def command(page, name, effect):
    """Run a command by its name, from JupyterLab's list of all commands, and wait for its effect,
    which gets the focus.
    """

    def action():
        page.keyboard.press("Control+Shift+C")
        expect(page.locator(".lm-CommandPalette-input")).to_be_focused(timeout=SOON)
        page.keyboard.insert_text(
            name
        )  # all at once: letters that the list loses would be commands to the notebook
        expect(page.locator(".lm-CommandPalette-item.lm-mod-active")).to_contain_text(
            name, timeout=SOON
        )
        page.keyboard.press("Enter")
        expect(effect).to_be_focused(timeout=SOON)

    try_again(page, action)


def expect_notebook(page, path):
    """Expect a notebook to have opened, with its kernel, and to have the focus."""
    expect(page).to_have_url(re.compile(re.escape(path)), timeout=2 * MINUTE)
    expect(page.locator("#jp-main-statusbar").get_by_text("| Idle")).to_be_visible(
        timeout=2 * MINUTE
    )
    expect(page.locator(ACTIVE)).to_be_focused()
    page.evaluate(KEEPS_FOCUS)


def test_a_chapter_from_its_start_to_a_correct_exercise(lab, quick_page):
    page = quick_page
    page.add_init_script(LISTEN)
    page.goto(lab.url("notebooks/00_start.ipynb"))  # the page on which `make lab` opens
    expect_notebook(page, "notebooks/00_start.ipynb")

    # The map: a link for each chapter.
    go_to_cell(page, "CourseMap()")
    tab_to(
        page,
        page.locator(f"{ACTIVE} .jp-OutputArea").get_by_role("link", name="underflow", exact=True),
    )
    page.keyboard.press("Enter")
    expect_notebook(page, "notebooks/02_underflow.ipynb")
    figure = page.locator(".jp-OutputArea-output img[alt^='Running totals of 10,000 additions']")
    expect(figure).to_have_count(1)  # as it is stored

    # Run it all.
    confirm = page.get_by_role("button", name="Confirm Kernel Restart")
    command(page, "Restart Kernel and Run All Cells", confirm)
    confirm.press("Enter")
    prompts = page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-CodeCell .jp-InputPrompt")
    expect(prompts.last).to_have_text("[*]:")
    expect(prompts.last).to_have_text(f"[{prompts.count()}]:", timeout=3 * MINUTE)
    expect(errors(page)).to_have_count(1)  # the one that the chapter shows on purpose
    expect(figure).to_have_count(1)  # as it is drawn

    # Into the panel: the arrow keys belong to its menu and its sliders, and Escape leads back to
    # the notebook.
    page.keyboard.press("Escape")
    go_to_cell(page, "explorer = RangeExplorer()")
    panel = page.get_by_role("group", name="RangeExplorer")
    status = panel.get_by_role("status")
    told = page.locator(".amp-announcer")
    chosen, centre = (
        panel.get_by_role("combobox", name="format"),
        panel.get_by_role("slider", name="centre, 2 to the"),
    )
    tab_to(page, chosen)
    chosen.press("ArrowUp")
    expect(chosen).to_have_value("bf16")
    expect(told).to_contain_text("normal 100.0 %")
    chosen.press("ArrowDown")
    expect(told).to_contain_text("lost 10.6 %")
    tab_to(page, centre)
    expect(centre).to_have_attribute("aria-description", re.compile("the typical size"))
    centre.press("ArrowLeft")
    expect(centre).to_have_attribute("aria-valuetext", "−21")
    expect(status).to_contain_text(re.compile(r"lost 1[5-9]\.\d %"))
    expect(told).to_contain_text(re.compile(r"lost 1[5-9]\.\d %"))
    page.keyboard.press("Escape")
    expect(page.locator(ACTIVE)).to_be_focused()

    # To the chapter's end, and to the reader's copy of the exercises.
    go_to_cell(page, "your own copy; six of them")
    tab_to(page, page.locator(ACTIVE).get_by_role("link", name="the exercises"))
    page.keyboard.press("Enter")
    expect_notebook(page, "my_work/02_underflow.ipynb")

    # Run down to the first blank, fill it in, and run that.
    press_until(
        page,
        "Shift+Enter",
        lambda: page.locator(ACTIVE).filter(has_text="def smallest_step").count(),
    )
    page.keyboard.press("Enter")
    expect(page.locator(f"{ACTIVE} .cm-content")).to_be_focused()
    for key in ("Control+Home", "ArrowDown", "ArrowDown", "End", "Enter"):
        page.keyboard.press(key)
    page.keyboard.type(
        "one = torch.ones((), dtype=dtype)\nreturn torch.nextafter(one * torch.finfo(dtype).eps / "
        "2, one)"
    )
    page.keyboard.press("Control+Enter")
    expect(page.locator(ACTIVE).locator(".jp-OutputArea")).to_contain_text("Correct.")
    expect(told).to_contain_text("Correct.")
    assert page.evaluate("window.byMouse") == []
