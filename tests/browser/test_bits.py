"""Chapter 01's panel in a real browser: turn bits by mouse and by keyboard,
type numbers good and bad.
"""

import re

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import SCREENSHOTS
from tests.browser.notebook import cell_with, errors, open_notebook, press, run_all, settle
from tests.browser.pictures import few_colours


def bit(panel, weight):
    """The button of a bit; a screen reader hears its digit and its place."""
    return panel.get_by_role("button", name=re.compile(rf"\bbit {weight}: "))


def expect_digits(panel, digits):
    """Expect of the bits to say this, from the sign on."""
    for weight, digit in enumerate(reversed(digits)):
        expect(bit(panel, weight)).to_have_css(
            "content", re.compile(f'^"{digit}"'), pseudo="before"
        )


def choose_format(panel, name):
    select = panel.get_by_role("combobox").first
    select.select_option(label=select.locator("option", has_text=f"{name} (").inner_text())


@pytest.fixture
def panel(lab, page):
    open_notebook(page, lab.small_notebook("01_bits", "BitExplorer()"))
    run_all(page)
    expect(errors(page)).to_have_count(0)
    return cell_with(page, "BitExplorer()").locator(".amp-bits")


@pytest.mark.slow  # `make test` tries it in test_panels.py
def test_bit_explorer_answers(panel, page, portray):
    value, status = panel.locator(".amp-value"), panel.get_by_role("status")
    expect(value).to_have_text("0.0999755859375")
    expect_digits(panel, "0010111001100110")

    # The sign by mouse, the highest exponent bit by keyboard: Tab from the sign, then Space.
    bit(panel, 15).click()
    expect(value).to_have_text("−0.0999755859375")
    press(page, bit(panel, 15), "Tab")
    expect(bit(panel, 14)).to_be_focused()
    page.keyboard.press("Space")
    expect(value).to_have_text("−6552")
    page.keyboard.press("Enter")
    expect(value).to_have_text("−0.0999755859375")
    expect_digits(panel, "1010111001100110")
    expect(bit(panel, 15)).to_have_attribute("title", "bit 15: sign")

    text = panel.get_by_role("textbox").first
    text.fill("2049")
    text.press("Enter")
    expect(value).to_have_text("2048")
    expect(status).to_contain_text("2049 is not in fp16: rounded to 2048, 1 too small")
    expect(panel.get_by_role("row", name="fp32")).to_contain_text("exact")
    portray(panel, "01_bits")

    choose_format(panel, "fp32")
    expect(status).to_contain_text("2049 is in fp32 exactly")
    expect(value).to_have_text("2049")


@pytest.mark.slow
def test_64_bits_stay_within_the_panel_at_any_width(panel, page, portray):
    choose_format(panel, "fp64")
    expect(bit(panel, 63)).to_be_visible()
    assert panel.bounding_box()["height"] <= 760
    for width in (1500, 1000):
        page.set_viewport_size({"width": width, "height": 1000})
        settle(page)
        frame = panel.bounding_box()
        left, right = frame["x"], frame["x"] + frame["width"]
        for weight in (63, 52, 51, 24, 0):
            box = bit(panel, weight).bounding_box()
            assert left <= box["x"] and box["x"] + box["width"] <= right, (width, weight)
        clipped = "e => e.scrollWidth > e.clientWidth + 1"
        assert not panel.locator(".amp-bits-view").evaluate(clipped), f"cut at {width} pixels"
    portray(panel, "01_bits_fp64")


@pytest.mark.screenshots
def test_animation(panel, page):
    """Play with the panel for ten pictures; docs/images has such an animation, bits.gif,
    and its start, bits.png.
    """
    value, text = panel.locator(".amp-value"), panel.get_by_role("textbox").first
    bottom = panel.get_by_role("row", name="fp32")  # what is above it is the story
    pictures = []

    def take(expected):
        expect(value).to_have_text(re.compile(f"^{expected}"))
        settle(page)
        frame, end = panel.bounding_box(), bottom.bounding_box()
        height = pictures[0].height if pictures else end["y"] + end["height"] - frame["y"]
        clip = {"x": frame["x"], "y": frame["y"], "width": frame["width"], "height": height}
        pictures.append(
            few_colours(page.screenshot(clip=clip), like=pictures[0] if pictures else None)
        )

    text.fill("2049")
    text.press("Enter")
    take("2048")
    SCREENSHOTS.mkdir(exist_ok=True)
    few_colours(panel.screenshot()).save(SCREENSHOTS / "bits.png", optimize=True)
    press(page, panel.get_by_role("button", name="next ▸"), "Space")
    take("2050")
    choose_format(panel, "bf16")
    take("2048")
    press(page, bit(panel, 15), "Space")
    take("−2048")
    press(page, bit(panel, 14), "Space")
    take("−2⁻¹¹⁷")
    press(page, panel.get_by_role("button", name="smallest normal"), "Space")
    take("2⁻¹²⁶")
    choose_format(panel, "fp16")
    take("0")
    press(page, panel.get_by_role("button", name="largest"), "Space")
    take("65504")
    press(page, panel.get_by_role("button", name="next ▸"), "Space")
    take("inf")
    first, *others = pictures
    first.save(
        SCREENSHOTS / "bits.gif",
        save_all=True,
        append_images=others,
        duration=1400,
        loop=0,
        optimize=True,
    )
