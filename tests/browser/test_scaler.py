"""Chapter 05 in a real browser: run it, move the loss scale by keyboard, change format and layer."""

import re

from playwright.sync_api import expect

from tests.browser.notebook import cell_with, errors, open_notebook, portray, run_all


def test_scaler_chapter_runs_and_its_panel_answers(lab, page, screenshots):
    open_notebook(page, lab.url("notebooks/05_scaler.ipynb"))
    seconds = run_all(page)
    print(f"05: Run All in {seconds:.1f} s")
    expect(errors(page)).to_have_count(0)

    panel = cell_with(page, "ScaleExplorer(recording)")
    status = panel.locator('[role="status"]').first
    picture_of_scales = panel.get_by_role("img").last
    expect(status).to_contain_text(re.compile(r"lost\s+\d"))
    expect(panel.get_by_text("is too small")).to_be_visible()

    # The loss scale by keyboard alone, up to a useful one and past it.
    slider = panel.get_by_role("slider", name="scale, 2 to the")
    slider.focus()
    for _ in range(20):
        page.keyboard.press("ArrowRight")
    expect(panel.locator(".widget-readout")).to_have_text("20")
    expect(panel.get_by_text("is useful")).to_be_visible()
    expect(picture_of_scales).to_have_attribute("aria-label", re.compile(r"now at 2\^20; useful: 2\^\d+ to 2\^\d+"))
    page.keyboard.press("End")
    expect(panel.get_by_text("is too large")).to_be_visible()
    page.keyboard.press("Home")
    expect(panel.get_by_text("is too small")).to_be_visible()

    # Another format, by keyboard: Space opens the menu. bf16 needs no scale.
    panel.get_by_label("format").focus()
    for key in ("Space", "ArrowDown", "Enter"):
        page.keyboard.press(key)
    expect(panel.get_by_text("is useful")).to_be_visible()
    expect(status).to_contain_text("normal 100.0 %")

    # One layer, and what the optimizer gets of it.
    panel.get_by_label("format").select_option("fp16")
    panel.get_by_label("layer", exact=True).select_option("blocks.1.qkv")
    panel.get_by_label("gradients of").select_option("weights")
    expect(panel.get_by_label("layer", exact=True)).to_have_value("blocks.1.qkv")
    panel.get_by_label("gradients of").select_option("layers' outputs")
    panel.get_by_label("layer", exact=True).select_option("all layers")
    slider.focus()
    page.keyboard.press("Home")
    for _ in range(26):
        page.keyboard.press("ArrowRight")
    expect(panel.get_by_text("is useful")).to_be_visible()

    portray(page, panel, screenshots, "05_scaler")
