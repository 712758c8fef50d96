"""The pictures of docs/tour.md, to be copied from screenshots/tour:
`make screenshots ARGS="-k tour"`.
"""

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import SCREENSHOTS
from tests.browser.every_panel import PANELS
from tests.browser.notebook import cell_with, errors, open_notebook, run_all, settle
from tests.browser.pictures import few_colours

FOLDER = SCREENSHOTS / "tour"
STATES = {  # a picture → its panel, and what is chosen in it
    "range": ("RangeExplorer", "panel.centre.value = -24"),
    "collision": ("CollisionExplorer", "panel.double.click()"),
    "trace": ("DtypeTrace", "panel.model.value, panel.policy.value = 'CharGPT', 'cuda'"),
    "scale": ("ScaleExplorer", "panel.exponent.value = 16"),
    "workbench": ("LoopWorkbench", "panel.start.value = 'three faults at once'"),
    "recipes": ("RecipeExplorer", ""),
    "blocks": ("BlockExplorer", ""),
}


def save(name, screenshot):
    FOLDER.mkdir(parents=True, exist_ok=True)
    few_colours(screenshot).save(FOLDER / f"{name}.png", optimize=True)


@pytest.mark.screenshots
def test_tour_of_panels(lab, quick_page):
    cells = [(*PANELS[panel], choice) for panel, choice in STATES.values()]
    sources = [f"{before}\npanel = {line}\n{choice}\npanel" for before, line, choice in cells]
    open_notebook(quick_page, lab.write("small/tour.ipynb", *sources))
    run_all(quick_page)
    expect(errors(quick_page)).to_have_count(0)
    for place, name in enumerate(STATES):
        panel = quick_page.locator(".amp-panel").nth(place)
        panel.scroll_into_view_if_needed()
        settle(quick_page)
        save(name, panel.screenshot())


@pytest.mark.screenshots
def test_tour_of_the_loop_as_it_is_stored(lab, quick_page):
    open_notebook(quick_page, lab.url("notebooks/06_loop.ipynb"))
    card = cell_with(quick_page, "card = make_report_card")
    card.evaluate("cell => cell.scrollIntoView({block: 'start'})")
    settle(quick_page)
    save("loop", quick_page.screenshot())
