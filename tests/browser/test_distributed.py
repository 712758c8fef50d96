"""Chapter 10's panel in a real browser: choose by keyboard how ranks agree, how many they are,
and where one overflows.
"""

import re

import pytest
from playwright.sync_api import expect

from tests.browser.notebook import cell_with, choose_next, errors, open_notebook, press, run_all

pytestmark = (
    pytest.mark.slow
)  # `make test` opens every panel, in test_panels.py, and uses the first one


def test_rank_explorer_answers(lab, page, portray):
    open_notebook(page, lab.small_notebook("10_distributed", "RankExplorer()"))
    run_all(page)
    expect(errors(page)).to_have_count(0)

    panel = cell_with(page, "RankExplorer()")
    verdict = panel.locator('[role="status"]').last
    picture = panel.get_by_role("img").first
    expect(verdict).to_contain_text("In step 13 rank 1 skips and the others step")
    expect(verdict).to_contain_text("the layer norms differ from rank 0's")
    expect(picture).to_have_attribute(
        "aria-label", re.compile(r"^30 steps\. ranks 0, 2 and 3: scale from .*; rank 1: scale")
    )

    # Another way to agree, by keyboard: the gradients' all-reduce first, then that of found_inf.
    agreement = panel.get_by_label("ranks agree on", exact=True)
    choose_next(page, agreement)
    expect(verdict).to_contain_text(
        "all 4 ranks skip step 13 together, and keep one scale and equal weights"
    )
    choose_next(page, agreement)
    expect(verdict).to_contain_text("One all-reduce of found_inf keeps the ranks together")
    expect(picture).to_have_attribute(
        "aria-label", re.compile(r"ranks 0–3: scale from .*, 1 skipped, distance from rank 0 0\.")
    )

    # A later outlier, with the arrow keys.
    first = panel.get_by_role("slider", name="first outlier at")
    press(page, first, *["ArrowRight"] * 3)
    expect(verdict).to_contain_text("skip step 16 together")
    press(page, first, "Home")
    expect(verdict).to_contain_text("skip step 1 together")

    # Eight ranks, and outliers on one after the other.
    choose_next(page, panel.get_by_label("ranks", exact=True))
    expect(verdict).to_contain_text("all 8 ranks skip step 1 together")
    choose_next(page, panel.get_by_label("outliers", exact=True))
    expect(verdict).to_contain_text("all 8 ranks skip 6 steps together")
    panel.get_by_label("on", exact=True).select_option("the ranks in turn")
    agreement.select_option("nothing (each has a shard)")
    expect(verdict).to_contain_text(
        "In step 1 rank 0 skips and the others step: from step 2 on their scales differ"
    )
    expect(picture).to_have_attribute(
        "aria-label", re.compile("rank 5: scale from .*ranks 6 and 7: scale from")
    )

    # Fewer steps: the first outlier stays within them.
    press(page, first, "End")
    press(page, panel.get_by_role("slider", name="steps"), "Home")
    expect(verdict).to_contain_text("their scales will differ in the next step")
    expect(first).to_have_attribute("aria-valuetext", "10")

    # Without outliers, two of the controls have nothing to say.
    panel.get_by_label("outliers", exact=True).select_option("never")
    expect(verdict).to_contain_text("No rank overflows, so there is nothing to agree on")
    expect(panel.get_by_label("on", exact=True)).to_be_disabled()

    panel.get_by_label("outliers", exact=True).select_option("bursts of 3")
    press(page, panel.get_by_role("slider", name="steps"), "End")
    expect(picture).to_have_attribute("aria-label", re.compile(r"^40 steps\."))
    press(page, first, "Home", *["ArrowRight"] * 3)
    expect(verdict).to_contain_text("In step 4 rank 0 skips and the others step")
    portray(panel, "10_distributed")
