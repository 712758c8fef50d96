"""Chapter 08's panel in a real browser: change recipe and options by keyboard,
and read what a step kept.
"""

import re

import pytest
from playwright.sync_api import expect

from tests.browser.notebook import cell_with, choose_next, errors, open_notebook, press, run_all

pytestmark = (
    pytest.mark.slow
)  # `make test` opens every panel, in test_panels.py, and uses the first one


def test_recipe_explorer_answers(lab, page, portray):
    open_notebook(page, lab.small_notebook("08_recipes", "RecipeExplorer()"))
    run_all(page)
    expect(errors(page)).to_have_count(0)

    panel = cell_with(page, "RecipeExplorer()")
    verdict = panel.locator('[role="status"]').last
    bars = panel.get_by_role("img")
    measured = panel.get_by_label("measured", exact=True)
    expect(verdict).to_contain_text("O2 with Adam keeps 16.0 bytes for each parameter, fp32 16.0")
    expect(bars).to_have_attribute(
        "aria-label", re.compile(r"^bytes for each parameter: O2 16\.0 \(weights .*; fp32 16\.0")
    )
    expect(measured).to_contain_text("dynamic, 65,536")

    # Without master weights Adam divides by nothing; bf16 saves it.
    choose_next(page, panel.get_by_label("master weights", exact=True))
    expect(verdict).to_contain_text("this training is over")
    expect(bars).to_have_attribute("aria-label", re.compile(r"O2 8\.\d \(.*; fp32 16\.0"))
    panel.get_by_label("dtype", exact=True).select_option("bf16")
    expect(verdict).to_contain_text(re.compile(r"The first step changed \d"))

    # The next recipe, by keyboard; it has none of these options but the ones that stay enabled.
    panel.get_by_label("recipe", exact=True).select_option("pure bf16")
    for option in ("dtype", "batch norm", "master weights", "loss scale"):
        expect(panel.get_by_label(option, exact=True)).to_be_disabled()
    choose_next(page, panel.get_by_label("recipe", exact=True))
    expect(verdict).to_contain_text("pure bf16 + SR with Adam keeps 8.0 bytes")

    # A lower learning rate, with the arrow keys: fewer weights change.
    panel.get_by_label("recipe", exact=True).select_option("pure bf16")
    expect(verdict).to_contain_text("pure bf16 with Adam")
    panel.get_by_label("optimizer", exact=True).select_option("SGD")
    expect(verdict).to_contain_text("keeps 4.0 bytes")
    slider = panel.get_by_role("slider")
    press(page, slider, "End")
    expect(panel.locator(".widget-readout")).to_have_text("1e-05")
    expect(verdict).to_contain_text(re.compile(r"changed \d\.\d %"))  # a few percent, of fp32's 98
    press(page, slider, "Home")
    expect(verdict).to_contain_text(re.compile(r"changed 9\d\.\d %"))

    # Another net and another size.
    panel.get_by_label("a model of", exact=True).select_option("7 billion")
    expect(measured).to_contain_text("26.1 GiB")  # 4 bytes each
    panel.get_by_label("recipe", exact=True).select_option("O2")
    expect(verdict).to_contain_text(
        "O2 with SGD"
    )  # as a person does: the next choice follows the answer to the last
    panel.get_by_label("net", exact=True).select_option("CharGPT")
    expect(panel.get_by_text("CharGPT has no batch norm")).to_be_visible()
    panel.get_by_label("net", exact=True).select_option("DigitsResNet")
    portray(panel, "08_recipes")
