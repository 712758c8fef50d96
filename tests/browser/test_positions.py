"""Chapter 03's panel in a real browser: it counts collisions, by menu, by keyboard,
typed well and badly.
"""

import pytest
from playwright.sync_api import expect

from tests.browser.notebook import cell_with, choose_next, errors, open_notebook, press, run_all

pytestmark = (
    pytest.mark.slow
)  # `make test` opens every panel, in test_panels.py, and uses the first one


def test_collision_explorer_answers(lab, page, portray):
    open_notebook(page, lab.small_notebook("03_positions", "CollisionExplorer()"))
    run_all(page)
    expect(errors(page)).to_have_count(0)

    panel = cell_with(page, "CollisionExplorer()")
    counts = panel.get_by_role("status").filter(has_text=" ids for ")
    message = panel.get_by_role("status").filter(has_text="Nothing changed")
    chosen = panel.get_by_role("combobox")
    length, base, head = (
        panel.get_by_role("textbox", name=name) for name in ("context length", "base", "head size")
    )
    expect(counts).to_contain_text("385 ids for 512 tokens")
    rounded = panel.get_by_role("img", name="similarity map with ids in bf16")
    before = rounded.get_attribute("src")

    # The format by keyboard alone, then from the menu.
    choose_next(page, chosen)
    expect(counts).to_contain_text("512 ids for 512 tokens")
    expect(panel.get_by_role("img", name="similarity map with ids in fp16")).not_to_have_attribute(
        "src", before
    )
    chosen.select_option(label="fp8 E4M3")
    expect(counts).to_contain_text("55 ids for 512 tokens")
    expect(counts).to_contain_text("first collision at token 17")
    chosen.select_option(label="bf16")

    # The context: typed, doubled by button and keyboard, and typed badly.
    length.fill("2^17")
    length.press("Enter")
    expect(counts).to_contain_text("1,409 ids for 131,072 tokens")
    press(page, panel.get_by_role("button", name="× 2"), "Space")
    expect(counts).to_contain_text("1,537 ids for 262,144 tokens")
    for typed, words in (
        ("-5", "too small"),
        ("10.5", "whole numbers"),
        ("lots", "type a number"),
        ("1e999", "too large"),
    ):
        length.fill(typed)
        length.press("Enter")
        expect(message).to_contain_text(words)
        expect(counts).to_contain_text("1,537 ids for 262,144 tokens")
    length.fill("1024")
    length.press("Enter")
    expect(message).to_have_count(0)
    expect(counts).to_contain_text("513 ids for 1,024 tokens")
    head.fill("63")
    head.press("Enter")
    expect(message).to_contain_text("RoPE needs an even head size")
    head.fill("16")
    head.press("Enter")
    expect(message).to_have_count(0)
    expect(panel).to_contain_text("head size 16, base 10000")
    base.fill("500000")
    base.press("Enter")
    expect(panel).to_contain_text("head size 16, base 500000")
    portray(panel, "03_positions")
