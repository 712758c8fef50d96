"""The reader's way, in a real browser: `make lab`, run 00 and 06, solve an exercise, come back another day."""

import json
import re

from playwright.sync_api import expect

from tests.browser.notebook import (
    cell_with,
    code_cells,
    errors,
    open_notebook,
    picture,
    retype,
    run_all,
    save,
    use_theme,
)


def test_start_page_runs(lab, page, screenshots):
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    open_notebook(page, lab.url("notebooks/00_start.ipynb"))
    seconds = run_all(page)
    print(f"00: Run All in {seconds:.1f} s; server ready in {lab.seconds:.1f} s")
    expect(cell_with(page, "CourseMap()").locator(".jp-OutputArea")).to_contain_text("0 of 6")
    expect(page.locator(".jp-OutputArea-output").get_by_text("Not attempted.")).to_be_visible()
    expect(errors(page)).to_have_count(0)
    assert not [url for url in asked if "/news" in url], "JupyterLab asked for news"
    expect(page.get_by_text("Would you like to get notified about official Jupyter news?")).to_have_count(0)
    for width in (1500, 1000):
        picture(page, screenshots / f"00_start_{width}.png", width)


def test_first_cell_answers_wrong_and_right(lab, page):
    open_notebook(page, lab.url("notebooks/00_start.ipynb"))
    run_all(page)
    cell = cell_with(page, "answer = ...")
    retype(page, cell, "answer = torch.float16\nwhich_dtype.check(answer)")
    cell = cell_with(page, "answer = torch.float16")
    expect(cell.locator(".jp-OutputArea")).to_contain_text("narrower of the two does not win")
    retype(page, cell, "answer = torch.float32\nwhich_dtype.check(answer)")
    expect(cell_with(page, "answer = torch.float32").locator(".jp-OutputArea")).to_contain_text("Correct.")


def test_loop_chapter_runs(lab, page, screenshots):
    open_notebook(page, lab.url("notebooks/06_loop.ipynb"))
    seconds = run_all(page)
    print(f"06: Run All in {seconds:.1f} s")
    expect(errors(page)).to_have_count(1)  # the one that the chapter shows on purpose
    expect(errors(page)).to_contain_text("No inf checks were recorded")
    saved = lab.folder / "my_work" / "report_card" / "report_card.json"
    assert {row["recipe"] for row in json.loads(saved.read_text())["rows"]} >= {"fp32", "amp_fp16", "amp_bf16"}

    # The panel, by keyboard alone: Tab from the width slider, arrow keys, Space on the button.
    panel = cell_with(page, "StepExplorer()")
    slider = panel.get_by_role("slider").first
    slider.focus()
    before = panel.locator(".widget-readout").first.inner_text()
    page.keyboard.press("ArrowLeft")
    expect(panel.locator(".widget-readout").first).not_to_have_text(before)
    panel.get_by_role("button", name="Measure").focus()
    page.keyboard.press("Space")
    status = panel.get_by_role("status")
    expect(status).to_contain_text(re.compile(r"width 256, batch 128.*times as fast"), timeout=30_000)
    panel.evaluate("cell => cell.scrollIntoView({block: 'center'})")
    page.screenshot(path=str(screenshots / "06_loop_window.png"))  # docs/images/loop.png is such a one
    for width in (1500, 1000):
        picture(page, screenshots / f"06_loop_{width}.png", width)
    use_theme(page, "JupyterLab Dark")
    picture(page, screenshots / "06_loop_dark.png", 1500)


def test_progress_survives_a_restart(lab, page, screenshots):
    open_notebook(page, lab.url("my_work/06_loop.ipynb"))
    run_all(page)
    blank = page.locator(".jp-OutputArea-output").get_by_text("Not attempted.")
    expect(blank).to_have_count(6)
    cell = cell_with(page, "count_bytes.check(bytes_per_parameter)")
    retype(page, cell, 'answer = {"fp32": 16, "amp": 8, "half": 8}\ncount_bytes.check(answer)')
    cell = cell_with(page, "count_bytes.check(answer)")
    expect(cell.locator(".jp-OutputArea")).to_contain_text("AMP does not halve")
    retype(page, cell, 'answer = {"fp32": 16, "amp": 16, "half": 8}\ncount_bytes.check(answer)')
    expect(cell_with(page, "count_bytes.check(answer)").locator(".jp-OutputArea")).to_contain_text("Correct.")
    for width in (1500, 1000):
        picture(page, screenshots / f"06_exercises_{width}.png", width)
    save(page)

    lab.stop()
    lab.start()
    print(f"server ready again in {lab.seconds:.1f} s")
    open_notebook(page, lab.url("my_work/06_loop.ipynb"))
    expect(cell_with(page, '"amp": 16')).to_be_visible()  # what was typed is still there
    open_notebook(page, lab.url("notebooks/00_start.ipynb"))
    run_all(page)
    expect(cell_with(page, "CourseMap()").locator(".jp-OutputArea")).to_contain_text("1 of 6")
    assert code_cells(page).count() > 5
