"""Chapter 02 in a real browser: run it, move the range sliders by keyboard, change the format, solve an exercise."""

import re

from playwright.sync_api import expect

from tests.browser.notebook import cell_with, errors, open_notebook, picture, retype, run_all, use_theme


def shares(panel):
    """The percentages as a reader sees them: {"lost": "10.8 %", …}."""
    text = panel.get_by_role("status").inner_text()
    return dict(re.findall(r"(lost|subnormal|normal|overflow)\s+([<>]? ?[\d.]+ %)", text))


def test_underflow_chapter_runs_and_its_panel_answers(lab, page, screenshots):
    open_notebook(page, lab.url("notebooks/02_underflow.ipynb"))
    seconds = run_all(page)
    print(f"02: Run All in {seconds:.1f} s")
    expect(errors(page)).to_have_count(1)  # the mask that the chapter shows on purpose
    expect(errors(page)).to_contain_text("without overflow")

    panel = cell_with(page, "RangeExplorer()")
    status = panel.get_by_role("status")
    before = shares(panel)
    assert set(before) == {"lost", "subnormal", "normal", "overflow"}

    # The centre by keyboard alone: further down, more is lost.
    slider = panel.get_by_role("slider").first
    slider.focus()
    for _ in range(4):
        page.keyboard.press("ArrowLeft")
    expect(panel.locator(".widget-readout").first).to_have_text("−24")
    expect(status).to_contain_text(
        re.compile(r"lost (39|40)\.\d %")
    )  # of a normal distribution, what is below −¼ of its spread
    lower = shares(panel)
    assert lower["subnormal"] != before["subnormal"]

    # The loss scale brings it back.
    slider = panel.get_by_role("slider").nth(2)
    slider.focus()
    page.keyboard.press("End")
    expect(status).to_contain_text(re.compile(r"lost (0\.0|< 0\.1) %"))
    page.keyboard.press("Home")
    expect(status).to_contain_text(f"lost {lower['lost']}")

    # Another format, by mouse: the picture covers its whole range.
    panel.get_by_role("combobox").select_option("bf16")
    expect(status).to_contain_text("normal 100.0 %")
    expect(panel.get_by_role("img").last).to_have_attribute("aria-label", re.compile("normal 100.0 %"))
    panel.get_by_role("combobox").select_option("fp16")
    expect(status).to_contain_text(f"lost {lower['lost']}")
    panel.evaluate("cell => cell.scrollIntoView({block: 'center'})")
    page.screenshot(path=str(screenshots / "02_underflow_window.png"))
    for width in (1500, 1000):
        picture(page, screenshots / f"02_underflow_{width}.png", width)
    use_theme(page, "JupyterLab Dark")
    picture(page, screenshots / "02_underflow_dark.png", 1500)
    panel.get_by_role("combobox").select_option("bf16")
    expect(status).to_contain_text("normal 100.0 %")
    panel.evaluate("cell => cell.scrollIntoView({block: 'center'})")
    page.screenshot(path=str(screenshots / "02_underflow_dark_window.png"))
    use_theme(page, "JupyterLab Light")


def test_an_exercise_tells_a_wrong_answer_from_a_right_one(lab, page, screenshots):
    open_notebook(page, lab.url("my_work/02_underflow.ipynb"))
    run_all(page)
    expect(page.locator(".jp-OutputArea-output").get_by_text("Not attempted.")).to_have_count(6)
    cell = cell_with(page, "steady_sum.check(add_up)")
    retype(page, cell, "steady_sum.check(lambda terms: sum(terms).float())")
    cell = cell_with(page, "steady_sum.check(lambda")
    expect(cell.locator(".jp-OutputArea")).to_contain_text("casting the result brings nothing back")
    retype(page, cell, "steady_sum.check(lambda terms: torch.stack(terms).float().sum(dim=0))")
    expect(cell_with(page, ".float().sum(dim=0)").locator(".jp-OutputArea")).to_contain_text("Correct.")
    for width in (1500, 1000):
        picture(page, screenshots / f"02_exercises_{width}.png", width)
