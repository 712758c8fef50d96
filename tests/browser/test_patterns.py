"""Chapter 07's panel in a real browser: start from a wrong loop, mend it by keyboard,
switch by switch.
"""

import pytest
from playwright.sync_api import expect

from tests.browser.notebook import cell_with, choose_next, errors, open_notebook, press, run_all

pytestmark = (
    pytest.mark.slow
)  # `make test` opens every panel, in test_panels.py, and uses the first one


def test_loop_workbench_answers(lab, page, portray):
    open_notebook(page, lab.small_notebook("07_patterns", "LoopWorkbench()"))
    run_all(page)
    expect(errors(page)).to_have_count(0)

    panel = cell_with(page, "LoopWorkbench()")
    verdict = panel.locator('[role="status"]').last
    loop = panel.get_by_label("the loop that runs", exact=True)
    behaviours = panel.get_by_label("behaviours", exact=True)
    expect(verdict).to_contain_text("No fault in 12 behaviours")
    expect(loop.locator("ins, del")).to_have_count(0)

    # Start from a famous wrong loop, by keyboard.
    choose_next(page, panel.get_by_label("start from", exact=True))
    expect(verdict).to_contain_text("clipped-while-scaled")
    expect(loop.locator("ins")).to_contain_text("clip_grad_norm_")
    expect(loop.locator("del")).to_contain_text("clip_grad_norm_")
    expect(behaviours).to_contain_text("✗ clipping: clipped-while-scaled")
    expect(behaviours).to_contain_text("✓ steps")
    expect(
        panel.get_by_role("row", name="gradient norms at the step 0.000977 and 0.00391")
    ).to_be_visible()
    expect(panel.get_by_role("row", name="loss scales 1024 and 256")).to_be_visible()

    # Tab reaches the next switch; one more fault, and the menu of presets knows that this loop is
    # the reader's own.
    press(page, panel.get_by_label("start from", exact=True), "Tab")
    expect(panel.get_by_label("clip", exact=True)).to_be_focused()
    panel.get_by_label("scheduler waits", exact=True).select_option("no")
    expect(verdict).to_contain_text("2 faults: clipped-while-scaled, scheduler-ran-on")
    expect(panel.get_by_label("start from", exact=True)).to_have_value("your own")

    # A switch that has no effect is disabled, and the panel says why.
    panel.get_by_label("scaler.update", exact=True).select_option("never")
    expect(panel.get_by_label("scheduler waits", exact=True)).to_be_disabled()
    expect(panel.get_by_text("its menu has no effect")).to_be_visible()

    # Mend one fault of three: the one that it hid comes to light.
    panel.get_by_label("start from", exact=True).select_option("three faults at once")
    expect(verdict).to_contain_text("2 faults: clipped-while-scaled, scheduler-ran-on")
    portray(panel, "07_patterns")
    panel.get_by_label("clip", exact=True).select_option("after unscale")
    expect(verdict).to_contain_text("2 faults: sum-not-mean, scheduler-ran-on")
    panel.get_by_label("divide loss", exact=True).select_option("yes")
    expect(verdict).not_to_contain_text("sum-not-mean")
    panel.get_by_label("scheduler waits", exact=True).select_option("yes")
    expect(verdict).to_contain_text("No fault")
    expect(panel.get_by_label("start from", exact=True)).to_have_value("the right loop")
