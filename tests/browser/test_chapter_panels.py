"""The panels of chapters 02 to 12 in a real browser, one after the other: by keyboard and by menu.

Their functions have tests in their chapters: here it is seen that each kind of control reaches
them, and that their answers come back. `make test` opens every panel, in test_panels.py.
"""

import re

import pytest
from playwright.sync_api import expect

from tests.browser.every_panel import MACHINE
from tests.browser.notebook import (
    SOON,
    cell_with,
    choose_next,
    errors,
    open_notebook,
    press,
    retype,
    run_all,
    try_again,
)

pytestmark = pytest.mark.slow


@pytest.fixture
def shown(lab, page):
    """Return a function that runs a chapter's cell with a panel, and returns the panel."""

    def show(chapter, cell, setup=""):
        open_notebook(page, lab.small_notebook(chapter, cell, setup=setup))
        run_all(page)
        expect(errors(page)).to_have_count(0)
        return cell_with(page, cell)

    return show


def menu(panel, name):
    return panel.get_by_label(name, exact=True)


def verdict_of(panel):
    return panel.locator('[role="status"]').last


def test_range_explorer(shown, page, portray):
    panel = shown("02_underflow", "RangeExplorer()")
    status = panel.get_by_role("status")
    press(page, panel.get_by_role("slider").first, *["ArrowLeft"] * 4)
    expect(panel.locator(".widget-readout").first).to_have_text("−24")
    # of a normal distribution, what is below −¼ of its spread
    expect(status).to_contain_text(re.compile(r"lost (39|40)\.\d %"))
    press(page, panel.get_by_role("slider").nth(2), "End")
    expect(status).to_contain_text(re.compile(r"lost (0\.0|< 0\.1) %"))
    press(page, panel.get_by_role("slider").nth(2), "Home")
    panel.get_by_role("combobox").select_option("bf16")
    expect(status).to_contain_text("normal 100.0 %")
    picture = panel.get_by_role("img").last
    expect(picture).to_have_attribute("aria-label", re.compile("normal 100.0 %"))
    panel.get_by_role("combobox").select_option("fp16")
    portray(panel, "02_underflow")


def test_collision_explorer(shown, page, portray):
    panel = shown("03_positions", "CollisionExplorer()")
    counts = panel.get_by_role("status").filter(has_text=" ids for ")
    message = panel.get_by_role("status").filter(has_text="Nothing changed")
    length, base = (panel.get_by_role("textbox", name=one) for one in ("context length", "base"))
    expect(counts).to_contain_text("385 ids for 512 tokens")
    choose_next(page, panel.get_by_role("combobox"))
    expect(counts).to_contain_text("512 ids for 512 tokens")
    expect(panel.get_by_role("img", name="similarity map with ids in fp16")).to_be_visible()
    panel.get_by_role("combobox").select_option(label="bf16")

    # Typed, doubled by button and keyboard, and typed badly.
    length.fill("2^17")
    length.press("Enter")
    expect(counts).to_contain_text("1,409 ids for 131,072 tokens")
    press(page, panel.get_by_role("button", name="× 2"), "Space")
    expect(counts).to_contain_text("1,537 ids for 262,144 tokens")
    length.fill("10.5")
    length.press("Enter")
    expect(message).to_contain_text("whole numbers")
    expect(counts).to_contain_text("1,537 ids for 262,144 tokens")
    length.fill("1024")
    length.press("Enter")
    expect(message).to_have_count(0)
    base.fill("500000")
    base.press("Enter")
    expect(panel).to_contain_text("head size 64, base 500000")
    portray(panel, "03_positions")


def test_dtype_trace(shown, page, portray):
    setup = "import torch\nfrom torch import nn\n\nx = torch.randn(4, 8)"
    panel = shown("04_autocast", "DtypeTrace()", setup)
    forward = panel.get_by_role("table", name="modules, forward")
    expect(panel).to_contain_text("7 casts inserted (6 of weights, 1 of activations)")
    choose_next(page, menu(panel, "autocast to"))
    expect(panel).to_contain_text('autocast("cpu", fp16)')
    menu(panel, "look into").select_option(label="linear2")
    menu(panel, "pass").select_option(label="backward")
    back = panel.get_by_role("table", name="ops of linear2, backward")
    expect(back).to_contain_text("the gradient’s way back")
    menu(panel, "pass").select_option(label="forward")
    menu(panel, "policy").select_option(index=1)
    expect(panel).to_contain_text('autocast("cuda", fp16)')
    menu(panel, "model").select_option(label="CharGPT")
    expect(forward).to_contain_text("qkv")
    menu(panel, "look into").select_option(label="blocks.0.qkv")
    portray(panel, "04_autocast")

    # A model of the reader's own, and one that raises.
    retype(page, panel, "DtypeTrace(nn.Linear(8, 2), x)")
    mine = cell_with(page, "DtypeTrace(nn.Linear(8, 2), x)")
    expect(mine).to_contain_text("3 casts inserted")
    retype(page, mine, "DtypeTrace(nn.Linear(7, 2), x)")
    wrong = cell_with(page, "DtypeTrace(nn.Linear(7, 2), x)")
    expect(wrong.get_by_role("status").filter(has_text="Nothing changed")).to_contain_text(
        "raised RuntimeError"
    )


def test_scale_explorer(shown, page, portray):
    panel = shown("05_scaler", "ScaleExplorer(recording)")
    slider = panel.get_by_role("slider", name="scale, 2 to the")
    expect(panel.get_by_text("is too small")).to_be_visible()
    press(page, slider, *["ArrowRight"] * 20)
    expect(panel.locator(".widget-readout")).to_have_text("20")
    expect(panel.get_by_text("is useful")).to_be_visible()
    picture = panel.get_by_role("img").last
    useful = re.compile(r"now at 2\^20; useful: 2\^\d+ to 2\^\d+")
    expect(picture).to_have_attribute("aria-label", useful)
    press(page, slider, "End")
    expect(panel.get_by_text("is too large")).to_be_visible()
    press(page, slider, "Home")

    # bf16 needs no scale; one layer, and what the optimizer gets of it.
    choose_next(page, menu(panel, "format"))
    expect(panel.get_by_text("is useful")).to_be_visible()
    menu(panel, "format").select_option("fp16")
    expect(panel.get_by_text("is too small")).to_be_visible()
    menu(panel, "layer").select_option("blocks.1.qkv")
    menu(panel, "gradients of").select_option("weights")
    expect(menu(panel, "layer")).to_have_value("blocks.1.qkv")
    portray(panel, "05_scaler")


def test_loop_workbench(shown, page, portray):
    panel = shown("07_patterns", "LoopWorkbench()")
    verdict, start = verdict_of(panel), menu(panel, "start from")
    loop, behaviours = menu(panel, "the loop that runs"), menu(panel, "behaviours")
    expect(verdict).to_contain_text("No fault in 12 behaviours")
    expect(loop.locator("ins, del")).to_have_count(0)
    choose_next(page, start)
    expect(verdict).to_contain_text("clipped-while-scaled")
    expect(loop.locator("ins")).to_contain_text("clip_grad_norm_")
    expect(behaviours).to_contain_text("✗ clipping: clipped-while-scaled")

    # Tab reaches the next switch; with one more fault the loop is the reader's own.
    press(page, start, "Tab")
    expect(menu(panel, "clip")).to_be_focused()
    menu(panel, "scheduler waits").select_option("no")
    expect(verdict).to_contain_text("2 faults: clipped-while-scaled, scheduler-ran-on")
    expect(start).to_have_value("your own")
    menu(panel, "scaler.update").select_option("never")
    expect(menu(panel, "scheduler waits")).to_be_disabled()
    expect(panel.get_by_text("its menu has no effect")).to_be_visible()

    # Fix one fault of three: the one that it hid comes to light.
    start.select_option("three faults at once")
    expect(verdict).to_contain_text("2 faults: clipped-while-scaled, scheduler-ran-on")
    portray(panel, "07_patterns")
    menu(panel, "clip").select_option("after unscale")
    expect(verdict).to_contain_text("2 faults: sum-not-mean, scheduler-ran-on")
    menu(panel, "divide loss").select_option("yes")
    expect(verdict).not_to_contain_text("sum-not-mean")
    menu(panel, "scheduler waits").select_option("yes")
    expect(start).to_have_value("the right loop")


def test_recipe_explorer(shown, page, portray):
    panel = shown("08_recipes", "RecipeExplorer()")
    verdict = verdict_of(panel)
    expect(verdict).to_contain_text("O2 with Adam keeps 16.0 bytes for each parameter, fp32 16.0")
    choose_next(page, menu(panel, "master weights"))
    expect(verdict).to_contain_text("this training is over")

    # A recipe that has none of these options.
    menu(panel, "recipe").select_option("pure bf16")
    for option in ("dtype", "batch norm", "master weights", "loss scale"):
        expect(menu(panel, option)).to_be_disabled()
    menu(panel, "optimizer").select_option("SGD")
    expect(verdict).to_contain_text("keeps 4.0 bytes")

    # A lower learning rate, with the arrow keys: fewer weights change.
    slider = panel.get_by_role("slider")
    press(page, slider, "End")
    expect(panel.locator(".widget-readout")).to_have_text("1e-05")
    expect(verdict).to_contain_text(re.compile(r"changed \d\.\d %"))  # a few percent, of fp32's 98
    press(page, slider, "Home")
    expect(verdict).to_contain_text(re.compile(r"changed 9\d\.\d %"))
    menu(panel, "a model of").select_option("7 billion")
    expect(menu(panel, "measured")).to_contain_text("26.1 GiB")  # 4 bytes each
    menu(panel, "recipe").select_option("O2")
    expect(verdict).to_contain_text("O2 with SGD")
    menu(panel, "net").select_option("CharGPT")
    expect(panel.get_by_text("CharGPT has no batch norm")).to_be_visible()
    menu(panel, "net").select_option("DigitsResNet")
    portray(panel, "08_recipes")


def test_roofline_explorer(shown, page, portray):
    panel = shown("09_speed", "RooflineExplorer(machine)", MACHINE)
    verdict, roofline = verdict_of(panel), panel.get_by_role("img")
    measure = panel.get_by_role("button", name="Measure")
    expect(verdict).to_contain_text("AMP bf16 is mostly compute-bound on this machine (cpu)")
    choose_next(page, menu(panel, "dtype"))
    slower = re.compile(r"AMP fp16 is compute-bound.* times as long as fp32")
    expect(verdict).to_contain_text(slower)

    # Fewer rows: at last only the weights are moved, and then there is hardly anything to do.
    press(page, panel.get_by_role("slider", name="M"), "Home")
    expect(verdict).to_contain_text("AMP fp16 is memory-bound")
    for name in ("N", "K"):
        press(page, panel.get_by_role("slider", name=name), "Home")
    expect(verdict).to_contain_text("launch-bound")

    # Another machine, which cannot be measured from here; on this one a small op can.
    menu(panel, "machine").select_option("V100 SXM2")
    expect(panel.get_by_text("has no fast units for bf16")).to_be_visible()
    expect(measure).to_be_disabled()
    menu(panel, "machine").select_option("this machine (cpu)")
    for name in ("M", "N", "K"):
        press(page, panel.get_by_role("slider", name=name), "Home", *["ArrowRight"] * 5)
    expect(menu(panel, "the op in numbers")).to_contain_text("4.19 M")
    press(page, measure, "Enter")
    expect(panel).to_contain_text(re.compile("Measured:|too busy to tell"))
    if "too busy to tell" not in panel.inner_text():
        both = re.compile(r"predicted .*, measured .*AMP fp16.*, measured")
        expect(roofline).to_have_attribute("aria-label", both)
    portray(panel, "09_speed")


def test_rank_explorer(shown, page, portray):
    panel = shown("10_distributed", "RankExplorer()")
    verdict, picture = verdict_of(panel), panel.get_by_role("img").first
    agreement, first = menu(panel, "ranks agree on"), panel.get_by_role("slider", name="first")
    expect(verdict).to_contain_text("In step 13 rank 1 skips and the others step")
    choose_next(page, agreement)
    expect(verdict).to_contain_text("all 4 ranks skip step 13 together")
    choose_next(page, agreement)
    expect(verdict).to_contain_text("One all-reduce of found_inf keeps the ranks together")
    press(page, first, *["ArrowRight"] * 3)
    expect(verdict).to_contain_text("skip step 16 together")
    press(page, first, "Home")
    choose_next(page, menu(panel, "ranks"))
    expect(verdict).to_contain_text("all 8 ranks skip step 1 together")
    choose_next(page, menu(panel, "outliers"))
    expect(verdict).to_contain_text("all 8 ranks skip 6 steps together")

    # Fewer steps: the first outlier stays within them.
    agreement.select_option("nothing (each has a shard)")
    expect(verdict).not_to_contain_text("all 8 ranks")
    press(page, first, "End")
    expect(first).to_have_attribute("aria-valuetext", "30")
    expect(verdict).to_contain_text("In step 30 ")

    def fewest_steps():
        press(page, panel.get_by_role("slider", name="steps"), "Home")
        expect(verdict).to_contain_text("In step 10 ", timeout=SOON)

    try_again(page, fewest_steps)
    expect(first).to_have_attribute("aria-valuetext", "10")
    menu(panel, "outliers").select_option("never")
    expect(verdict).to_contain_text("No rank overflows, so there is nothing to agree on")
    expect(menu(panel, "on")).to_be_disabled()

    menu(panel, "outliers").select_option("bursts of 3")
    expect(menu(panel, "on")).to_be_enabled()
    press(page, panel.get_by_role("slider", name="steps"), "End")
    expect(picture).to_have_attribute("aria-label", re.compile(r"^40 steps\."))
    press(page, first, "Home", *["ArrowRight"] * 3)
    expect(verdict).to_contain_text("In step 4 rank")
    portray(panel, "10_distributed")


def test_headroom_map(shown, page, portray):
    setup = "from amp_course.debugging.dying import record_dying_run\n\nrun = record_dying_run()"
    panel = shown("11_debugging", "HeadroomMap(run)", setup)
    step, status = panel.get_by_role("slider", name="step"), panel.get_by_role("status").first
    # It opens where the run died.
    expect(panel).to_contain_text(re.compile(r"Step \d+ of \d+: the loss is (inf|NaN)"))
    press(page, step, "Home", *["ArrowRight"] * 3)
    expect(step).to_have_attribute("aria-valuetext", "4")
    expect(status).to_contain_text("Step 4 of")
    panel.get_by_role("button", name="first heat").press("Enter")
    expect(status).to_contain_text(re.compile("is the first whose activation comes within"))
    heat = int(step.get_attribute("aria-valuetext"))
    panel.get_by_role("button", name="first inf or NaN").press("Enter")
    expect(status).to_contain_text(re.compile(r"Step \d+: .* holds an inf or a NaN"))
    assert heat < int(step.get_attribute("aria-valuetext"))
    portray(panel, "11_debugging")
    choose_next(page, menu(panel, "kind"))
    expect(panel).to_contain_text("activation gradient")


def test_block_explorer(shown, page, portray):
    panel = shown("12_frontiers", "BlockExplorer()")
    verdict, row = verdict_of(panel), panel.get_by_role("img").first
    measured = menu(panel, "measured")
    outlier, place = (panel.get_by_role("slider", name=name) for name in ("outlier", "its place"))
    sets = "The outlier sets the scale of 32 numbers: 14 of its 31 neighbours became 0."
    expect(verdict).to_contain_text(sets)
    expect(measured).to_contain_text("MXFP4: E2M1, blocks of 32")
    portray(panel, "12_frontiers")

    # Larger, and all neighbours are gone; smallest, and it sets no scale; in the other block.
    press(page, outlier, "Home")
    expect(verdict).to_contain_text("it sets no scale")
    press(page, outlier, "End")
    expect(outlier).to_have_attribute("aria-valuetext", "1,000 σ")
    expect(verdict).to_contain_text("all of its 31 neighbours became 0")
    press(page, place, "Home")
    expect(row).to_have_attribute("aria-label", re.compile("places 0 to 31"))
    press(page, place, "End")
    expect(row).to_have_attribute("aria-label", re.compile("places 32 to 63"))

    # With one scale for all there is one column; fp8 survives what fp4 does not.
    menu(panel, "block size").select_option("64, the whole row")
    expect(verdict).to_contain_text("all of its 63")
    expect(measured.get_by_role("columnheader")).to_have_count(2)
    menu(panel, "block size").select_option("16")
    expect(verdict).to_contain_text("all of its 15")
    menu(panel, "element").select_option("E4M3")
    expect(verdict).to_contain_text("none of its 15 neighbours became 0. With E2M1 elements, all")
    menu(panel, "element").select_option("E2M1")
    expect(verdict).to_contain_text("all of its 15")
    menu(panel, "scale").select_option("E4M3, with one fp32")
    expect(measured).to_contain_text("NVFP4: E2M1, blocks of 16")
    choose_next(page, menu(panel, "rounding"))
    expect(menu(panel, "rounding")).to_have_value("stochastic")
    expect(errors(page)).to_have_count(0)
