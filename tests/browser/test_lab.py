"""The reader's way, in a real browser: `make lab`, run 00 and 06, solve an exercise,
come back another day.
"""

import json
import re

import pytest
from playwright.sync_api import expect

from tests.browser.notebook import (
    cell_with,
    errors,
    open_notebook,
    outputs,
    press,
    restart_and_run_all,
    retype,
    run_all,
    save,
)


@pytest.mark.slow
def test_loop_chapter_runs_and_its_panel_answers(lab, page, portray):
    open_notebook(page, lab.url("notebooks/06_loop.ipynb"))
    print(f"06: Run All in {restart_and_run_all(page):.1f} s")
    expect(errors(page)).to_have_count(1)  # the one that the chapter shows on purpose
    expect(errors(page)).to_contain_text("No inf checks were recorded")
    saved = lab.folder / "my_work" / "report_card" / "report_card.json"
    assert {row["recipe"] for row in json.loads(saved.read_text())["rows"]} >= {
        "fp32",
        "amp_fp16",
        "amp_bf16",
    }

    # The panel, by keyboard alone: Tab from the width slider, arrow keys, Space on the button.
    panel = cell_with(page, "StepExplorer()")
    width = panel.locator(".widget-readout").first
    before = width.inner_text()
    press(page, panel.get_by_role("slider").first, "ArrowLeft")
    expect(width).not_to_have_text(before)
    press(page, panel.get_by_role("button", name="Measure"), "Space")
    expect(panel.get_by_role("status")).to_contain_text(
        re.compile(r"width 256, batch 128.*times as fast|too busy to tell")
    )
    portray(panel, "06_loop")  # docs/images/loop.png is such a one


def test_start_page_runs_and_its_first_exercise_answers(lab, page):
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    open_notebook(page, lab.url("notebooks/00_start.ipynb"))
    print(f"00: Run All in {restart_and_run_all(page):.1f} s; server ready in {lab.seconds:.1f} s")
    expect(cell_with(page, "CourseMap()").locator(".jp-OutputArea")).to_contain_text("0 of 6")
    expect(outputs(page).get_by_text("Not attempted.")).to_be_visible()
    expect(errors(page)).to_have_count(0)
    assert not [url for url in asked if "/news" in url], "JupyterLab asked for news"
    expect(
        page.get_by_text("Would you like to get notified about official Jupyter news?")
    ).to_have_count(0)

    check = "exercises.which_dtype.check(which_dtype)"
    retype(page, cell_with(page, "which_dtype = ..."), f"which_dtype = torch.float16\n{check}")
    cell = cell_with(page, "which_dtype = torch.float16")
    expect(cell.locator(".jp-OutputArea")).to_contain_text("not to the narrower one")
    retype(page, cell, f"which_dtype = torch.float32\n{check}")
    expect(
        cell_with(page, "which_dtype = torch.float32").locator(".jp-OutputArea")
    ).to_contain_text("Correct.")


@pytest.mark.slow
def test_progress_survives_a_restart(lab, page, browser):
    open_notebook(page, lab.url("my_work/06_loop.ipynb"))
    restart_and_run_all(page)
    expect(errors(page)).to_have_count(0)
    expect(outputs(page).get_by_text("Not attempted.")).to_have_count(7)
    check = "exercises.count_bytes.check(count_bytes)"
    cell = cell_with(page, check)
    retype(page, cell, f'count_bytes = {{"fp32": 16, "amp": 8, "half": 8}}\n{check}')
    expect(cell_with(page, check).locator(".jp-OutputArea")).to_contain_text("averages stay fp32")
    retype(
        page, cell_with(page, check), f'count_bytes = {{"fp32": 16, "amp": 16, "half": 8}}\n{check}'
    )
    expect(cell_with(page, check).locator(".jp-OutputArea")).to_contain_text("Correct.")
    save(page)

    lab.stop()
    lab.start()
    print(f"server ready again in {lab.seconds:.1f} s")
    another = browser.new_page()
    open_notebook(another, lab.url("my_work/06_loop.ipynb"))
    expect(cell_with(another, '"amp": 16')).to_be_visible()  # what was typed is still there
    open_notebook(another, lab.small_notebook("00_start", "CourseMap()"))
    run_all(another)
    expect(cell_with(another, "CourseMap()").locator(".jp-OutputArea")).to_contain_text("1 of 7")
    another.close()
