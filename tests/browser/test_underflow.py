"""Chapter 02's panel in a real browser: move the range sliders by keyboard, change the format."""

import re

import pytest
from playwright.sync_api import expect

from tests.browser.notebook import cell_with, errors, open_notebook, press, run_all

pytestmark = (
    pytest.mark.slow
)  # `make test` opens every panel, in test_panels.py, and uses the first one


def shares(panel):
    """The percentages as a reader sees them: {"lost": "10.8 %", …}."""
    text = panel.get_by_role("status").inner_text()
    return dict(re.findall(r"(lost|subnormal|normal|overflow)\s+([<>]? ?[\d.]+ %)", text))


def test_range_explorer_answers(lab, page, portray):
    open_notebook(page, lab.small_notebook("02_underflow", "RangeExplorer()"))
    run_all(page)
    expect(errors(page)).to_have_count(0)

    panel = cell_with(page, "RangeExplorer()")
    status = panel.get_by_role("status")
    before = shares(panel)
    assert set(before) == {"lost", "subnormal", "normal", "overflow"}

    # The centre by keyboard alone: further down, more is lost.
    press(page, panel.get_by_role("slider").first, *["ArrowLeft"] * 4)
    expect(panel.locator(".widget-readout").first).to_have_text("−24")
    expect(status).to_contain_text(
        re.compile(r"lost (39|40)\.\d %")
    )  # of a normal distribution, what is below −¼ of its spread
    lower = shares(panel)
    assert lower["subnormal"] != before["subnormal"]

    # The loss scale brings it back.
    press(page, panel.get_by_role("slider").nth(2), "End")
    expect(status).to_contain_text(re.compile(r"lost (0\.0|< 0\.1) %"))
    press(page, panel.get_by_role("slider").nth(2), "Home")
    expect(status).to_contain_text(f"lost {lower['lost']}")

    # Another format, by mouse: the picture covers its whole range.
    panel.get_by_role("combobox").select_option("bf16")
    expect(status).to_contain_text("normal 100.0 %")
    expect(panel.get_by_role("img").last).to_have_attribute(
        "aria-label", re.compile("normal 100.0 %")
    )
    panel.get_by_role("combobox").select_option("fp16")
    expect(status).to_contain_text(f"lost {lower['lost']}")
    portray(panel, "02_underflow")
