"""Chapter 07 in a real browser: run it, start from a wrong loop, mend it by keyboard, switch by switch."""

from playwright.sync_api import expect

from tests.browser.notebook import cell_with, errors, open_notebook, portray, run_all


def test_patterns_chapter_runs_and_its_panel_answers(lab, page, screenshots):
    open_notebook(page, lab.url("notebooks/07_patterns.ipynb"))
    seconds = run_all(page)
    print(f"07: Run All in {seconds:.1f} s")
    expect(errors(page)).to_have_count(1)  # the one that the chapter shows on purpose
    expect(errors(page)).to_contain_text("unscale_() has already been called")

    panel = cell_with(page, "LoopWorkbench()")
    verdict = panel.locator('[role="status"]').last
    loop = panel.get_by_label("the loop that runs")
    behaviours = panel.get_by_label("behaviours")
    expect(verdict).to_contain_text("No fault in 13 behaviours")
    expect(loop.locator("ins, del")).to_have_count(0)

    # Start from a famous wrong loop, by keyboard: Space opens the menu.
    panel.get_by_label("start from").focus()
    for key in ("Space", "ArrowDown", "Enter"):
        page.keyboard.press(key)
    expect(verdict).to_contain_text("clipped-while-scaled")
    expect(loop.locator("ins")).to_contain_text("clip_grad_norm_")
    expect(loop.locator("del")).to_contain_text("clip_grad_norm_")
    expect(behaviours).to_contain_text("✗ clipping: clipped-while-scaled")
    expect(behaviours).to_contain_text("✓ steps")
    expect(panel.get_by_text("norm at the step: 0.0009766; max norm: 1; loss scale: 1024")).to_be_visible()

    # Tab reaches the next switch; one more fault, and the menu of presets knows that this loop is the reader's own.
    panel.get_by_label("start from").focus()
    page.keyboard.press("Tab")
    expect(panel.get_by_label("clip", exact=True)).to_be_focused()
    panel.get_by_label("scheduler waits").select_option("no")
    expect(verdict).to_contain_text("2 faults: clipped-while-scaled, scheduler-ran-on")
    expect(panel.get_by_label("start from")).to_have_value("your own")

    # A switch that has no effect is disabled, and the panel says why.
    panel.get_by_label("scaler.update").select_option("never")
    expect(panel.get_by_label("scheduler waits")).to_be_disabled()
    expect(panel.get_by_text("its menu has no effect")).to_be_visible()

    # Mend one fault of three: the one that it hid comes to light.
    panel.get_by_label("start from").select_option("three faults at once")
    expect(verdict).to_contain_text("2 faults: clipped-while-scaled, scheduler-ran-on")
    portray(page, panel, screenshots, "07_patterns")
    panel.get_by_label("clip", exact=True).select_option("after unscale")
    expect(verdict).to_contain_text("2 faults: sum-not-mean, scheduler-ran-on")
    panel.get_by_label("divide loss").select_option("yes")
    panel.get_by_label("scheduler waits").select_option("yes")
    expect(verdict).to_contain_text("No fault")
    expect(panel.get_by_label("start from")).to_have_value("the right loop")
