"""Chapter 11's panel in a real browser: go through a dying run by keyboard,
jump to where it gets hot and where it dies.
"""

import re

import pytest
from playwright.sync_api import expect

from tests.browser.notebook import cell_with, choose_next, errors, open_notebook, press, run_all

pytestmark = (
    pytest.mark.slow
)  # `make test` opens every panel, in test_panels.py, and uses the first one


def test_headroom_map_answers(lab, page, portray):
    setup = "from amp_course.debugging.dying import record_dying_run\n\nrun = record_dying_run()"
    open_notebook(page, lab.small_notebook("11_debugging", "HeadroomMap(run)", setup=setup))
    run_all(page)
    expect(errors(page)).to_have_count(0)

    panel = cell_with(page, "HeadroomMap(run)")
    step = panel.get_by_role("slider", name="step")
    expect(panel).to_contain_text(
        re.compile(r"Step \d+ of \d+: the loss is (inf|NaN)")
    )  # it opens where the run died

    # By keyboard through the steps, then to where the heat begins, and to the first inf or NaN.
    press(page, step, "Home", *["ArrowRight"] * 3)
    expect(step).to_have_attribute("aria-valuetext", "4")
    status = panel.get_by_role("status")
    expect(status.first).to_contain_text("Step 4 of")
    panel.get_by_role("button", name="first heat").press("Enter")
    expect(status.first).to_contain_text(
        re.compile(r"Step \d+: .* is the first whose activation comes within 2 doublings")
    )
    heat = int(step.get_attribute("aria-valuetext"))
    panel.get_by_role("button", name="first inf or NaN").press("Enter")
    expect(status.first).to_contain_text(re.compile(r"Step \d+: .* holds an inf or a NaN"))
    assert heat < int(step.get_attribute("aria-valuetext"))
    portray(panel, "11_debugging")

    # Another kind of tensor.
    choose_next(page, panel.get_by_label("kind", exact=True))
    expect(panel).to_contain_text("activation gradient")
