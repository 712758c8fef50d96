"""Chapter 05's panel in a real browser: move the loss scale by keyboard,
change format and layer.
"""

import re

import pytest
from playwright.sync_api import expect

from tests.browser.notebook import cell_with, choose_next, errors, open_notebook, press, run_all

pytestmark = (
    pytest.mark.slow
)  # `make test` opens every panel, in test_panels.py, and uses the first one


def test_scale_explorer_answers(lab, page, portray):
    open_notebook(page, lab.small_notebook("05_scaler", "ScaleExplorer(recording)"))
    run_all(page)
    expect(errors(page)).to_have_count(0)

    panel = cell_with(page, "ScaleExplorer(recording)")
    status = panel.locator('[role="status"]').first
    picture_of_scales = panel.get_by_role("img").last
    expect(status).to_contain_text(re.compile(r"lost\s+\d"))
    expect(panel.get_by_text("is too small")).to_be_visible()

    # The loss scale by keyboard alone, up to a useful one and past it.
    slider = panel.get_by_role("slider", name="scale, 2 to the")
    press(page, slider, *["ArrowRight"] * 20)
    expect(panel.locator(".widget-readout")).to_have_text("20")
    expect(panel.get_by_text("is useful")).to_be_visible()
    expect(picture_of_scales).to_have_attribute(
        "aria-label", re.compile(r"now at 2\^20; useful: 2\^\d+ to 2\^\d+")
    )
    press(page, slider, "End")
    expect(panel.get_by_text("is too large")).to_be_visible()
    press(page, slider, "Home")
    expect(panel.get_by_text("is too small")).to_be_visible()

    # Another format, by keyboard. bf16 needs no scale.
    choose_next(page, panel.get_by_label("format", exact=True))
    expect(panel.get_by_text("is useful")).to_be_visible()
    expect(status).to_contain_text("normal 100.0 %")

    # One layer, and what the optimizer gets of it.
    panel.get_by_label("format", exact=True).select_option("fp16")
    expect(panel.get_by_text("is too small")).to_be_visible()
    panel.get_by_label("layer", exact=True).select_option("blocks.1.qkv")
    panel.get_by_label("gradients of", exact=True).select_option("weights")
    expect(panel.get_by_label("layer", exact=True)).to_have_value("blocks.1.qkv")
    panel.get_by_label("gradients of", exact=True).select_option("layers' outputs")
    panel.get_by_label("layer", exact=True).select_option("all layers")
    press(page, slider, "Home", *["ArrowRight"] * 26)
    expect(panel.get_by_text("is useful")).to_be_visible()

    portray(panel, "05_scaler")
