"""Chapter 12's panel in a real browser: drag an outlier by keyboard, change blocks and formats,
and read who pays for it.
"""

import re

import pytest
from playwright.sync_api import expect

from tests.browser.notebook import cell_with, choose_next, errors, open_notebook, press, run_all

pytestmark = (
    pytest.mark.slow
)  # `make test` opens every panel, in test_panels.py, and uses the first one


def test_block_explorer_answers(lab, page, portray):
    open_notebook(page, lab.small_notebook("12_frontiers", "BlockExplorer()"))
    run_all(page)
    expect(errors(page)).to_have_count(0)

    panel = cell_with(page, "BlockExplorer()")
    verdict = panel.locator('[role="status"]').last
    row = panel.get_by_role("img").first
    measured = panel.get_by_label("measured", exact=True)
    outlier, place = (panel.get_by_role("slider", name=name) for name in ("outlier", "its place"))
    size, element, scale, rounding = (
        panel.get_by_label(name, exact=True)
        for name in ("block size", "element", "scale", "rounding")
    )
    expect(verdict).to_contain_text(
        "The outlier sets the scale of 32 numbers: 14 of its 31 neighbours became 0."
    )
    expect(verdict).to_contain_text("With blocks of 8, 4 of the 7 would.")
    expect(row).to_have_attribute(
        "aria-label", re.compile("places 32 to 63, 14 of 31 neighbours became 0")
    )
    expect(measured).to_contain_text("MXFP4: E2M1, blocks of 32")
    portray(panel, "12_frontiers")

    # The outlier by keyboard: larger, and all neighbours are gone; smallest, and it sets no scale.
    press(page, outlier, "End")
    expect(outlier).to_have_attribute("aria-valuetext", "1,000 σ")
    expect(verdict).to_contain_text("all of its 31 neighbours became 0")
    press(page, outlier, "Home")
    expect(verdict).to_contain_text("it sets no scale")
    press(page, outlier, "End")

    # Into the other block.
    press(page, place, "Home")
    expect(row).to_have_attribute("aria-label", re.compile("places 0 to 31"))
    press(page, place, "End")
    expect(row).to_have_attribute("aria-label", re.compile("places 32 to 63"))

    # Smaller blocks confine it; with one scale for all, there is one column.
    size.select_option("8")
    expect(verdict).to_contain_text("The outlier sets the scale of 8 numbers: all of its 7")
    expect(measured.get_by_role("columnheader")).to_have_count(3)
    size.select_option("64, the whole row")
    expect(verdict).to_contain_text("all of its 63")
    expect(measured.get_by_role("columnheader")).to_have_count(2)

    # fp8 survives what fp4 does not; a scale that is not a power of two; rounding at random.
    size.select_option("16")
    expect(verdict).to_contain_text(
        "all of its 15"
    )  # as a person does: the next choice follows the answer to the last
    element.select_option("E4M3")
    expect(verdict).to_contain_text(
        "none of its 15 neighbours became 0. With E2M1 elements, all 15 would."
    )
    element.select_option("E2M1")
    expect(verdict).to_contain_text("all of its 15")
    choose_next(page, scale)
    expect(scale).to_have_value(re.compile("nearest"))
    scale.select_option("E4M3, with one fp32")
    expect(measured).to_contain_text("NVFP4: E2M1, blocks of 16")
    choose_next(page, rounding)
    expect(rounding).to_have_value("stochastic")
    expect(errors(page)).to_have_count(0)
