"""Chapter 09's panel in a real browser: move an op over the roofline by keyboard,
change the machine, and measure it.
"""

import re

import pytest
from playwright.sync_api import expect

from tests.browser.notebook import cell_with, choose_next, errors, open_notebook, press, run_all

pytestmark = (
    pytest.mark.slow
)  # `make test` opens every panel, in test_panels.py, and uses the first one

# Fixed rates, so that the words of a prediction are the same on every machine.
MACHINE = """
from amp_course.speed.machine import Machine, Rate
from amp_course.speed.panel import RooflineExplorer
machine = Machine("cpu", (Rate("fp32", 512, 2e11), Rate("bf16", 512, 1e12), Rate("fp16", 512, 2e10)), 1.5e10, 2e-6)
"""


def test_roofline_explorer_answers(lab, page, portray):
    open_notebook(page, lab.small_notebook("09_speed", "RooflineExplorer(machine)", setup=MACHINE))
    run_all(page)
    expect(errors(page)).to_have_count(0)

    panel = cell_with(page, "RooflineExplorer(machine)")
    verdict = panel.locator('[role="status"]').last
    roofline = panel.get_by_role("img")
    numbers = panel.get_by_label("the op in numbers", exact=True)
    expect(verdict).to_contain_text("AMP bf16 is mostly compute-bound on this machine (cpu)")
    expect(verdict).to_contain_text("times faster than fp32")
    expect(numbers).to_contain_text("AMP bf16")

    # A format with a lower roof than fp32's, by keyboard.
    choose_next(page, panel.get_by_label("dtype", exact=True))
    expect(verdict).to_contain_text(
        re.compile(r"AMP fp16 is compute-bound.* times slower than fp32")
    )

    # Fewer rows, with the arrow keys: at last only the weights are moved, and then there is hardly
    # anything to do.
    rows = panel.get_by_role("slider", name="M")
    press(page, rows, "Home")
    expect(verdict).to_contain_text("AMP fp16 is memory-bound")
    expect(roofline).to_have_attribute(
        "aria-label", re.compile(r"fp32: 0\.499 FLOPs per byte, memory-bound")
    )
    for name in ("N", "K"):
        press(page, panel.get_by_role("slider", name=name), "Home")
    expect(verdict).to_contain_text("launch-bound")

    # Another op, which has no K, on another machine, which cannot be measured from here.
    panel.get_by_label("op", exact=True).select_option("layer norm")
    expect(panel.get_by_text("M rows of N numbers")).to_be_visible()
    panel.get_by_label("machine", exact=True).select_option("V100 SXM2")
    expect(panel.get_by_text("has no fast units for bf16")).to_be_visible()
    measure = panel.get_by_role("button", name="Measure")
    expect(measure).to_be_disabled()

    # Measured here: one that does not fit is refused, a small one gets its mark next to the
    # predicted one.
    panel.get_by_label("machine", exact=True).select_option("this machine (cpu)")
    panel.get_by_label("op", exact=True).select_option("linear layer, forward")
    expect(panel.get_by_text("K features in")).to_be_visible()
    for name in ("M", "N", "K"):
        press(page, panel.get_by_role("slider", name=name), "End")
    expect(roofline).to_have_attribute("aria-label", re.compile(r"1\.09e\+04 FLOPs per byte"))
    press(page, measure, "Enter")
    expect(panel.get_by_text("fp32 was not measured")).to_be_visible()
    for name in ("M", "N", "K"):
        press(page, panel.get_by_role("slider", name=name), "Home", *["ArrowRight"] * 5)
    expect(numbers).to_contain_text("4.19 M")
    press(page, measure, "Enter")
    expect(panel).to_contain_text(re.compile("Measured:|too busy to tell"))
    if "too busy to tell" not in panel.inner_text():
        expect(roofline).to_have_attribute(
            "aria-label", re.compile(r"predicted .*, measured .*AMP fp16.*, measured")
        )

    portray(panel, "09_speed")
