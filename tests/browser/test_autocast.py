"""Chapter 04's panel in a real browser: it looks into the course's models,
by menu and by keyboard.
"""

import pytest
from playwright.sync_api import expect

from tests.browser.notebook import cell_with, choose_next, errors, open_notebook, retype, run_all

pytestmark = (
    pytest.mark.slow
)  # `make test` opens every panel, in test_panels.py, and uses the first one


def test_dtype_trace_answers(lab, page, portray):
    setup = "import torch\nfrom torch import nn\n\nx = torch.randn(4, 8)"
    open_notebook(page, lab.small_notebook("04_autocast", "DtypeTrace()", setup=setup))
    run_all(page)
    expect(errors(page)).to_have_count(0)

    panel = cell_with(page, "DtypeTrace()")
    totals = (
        panel.get_by_role("status")
        .filter(has_text="under autocast")
        .or_(panel.get_by_role("status").filter(has_text="no autocast"))
    )
    model, policy, dtype, direction, module = (
        panel.get_by_label(name, exact=True)
        for name in ("model", "policy", "autocast to", "pass", "look into")
    )
    expect(totals).to_contain_text("7 casts inserted (6 of weights, 1 of activations)")
    expect(panel.get_by_role("table", name="modules, forward").get_by_role("row")).to_have_count(5)

    # The dtype by keyboard alone, then the others from their menus.
    choose_next(page, dtype)
    expect(totals).to_contain_text('autocast("cpu", fp16)')
    expect(panel.get_by_role("table", name="modules, forward")).to_contain_text("fp16")
    dtype.select_option(label="off")
    expect(totals).to_contain_text("0 casts inserted")
    dtype.select_option(label="bf16")
    module.select_option(label="linear2")
    expect(panel.get_by_role("table", name="ops of linear2, forward")).to_contain_text(
        "cast of linear2.weight"
    )
    direction.select_option(label="backward")
    expect(totals).to_contain_text("6 gradients cast back")
    expect(panel.get_by_role("table", name="ops of linear2, backward")).to_contain_text(
        "the gradient’s way back"
    )
    direction.select_option(label="forward")
    policy.select_option(index=1)
    expect(totals).to_contain_text('autocast("cuda", bf16)')
    model.select_option(label="CharGPT")
    expect(panel.get_by_role("table", name="modules, forward")).to_contain_text("qkv")
    module.select_option(label="blocks.0.qkv")
    portray(panel, "04_autocast")

    # A model of the reader's own, and one that raises.
    retype(page, panel, "DtypeTrace(nn.Linear(8, 2), x)")
    mine = cell_with(page, "DtypeTrace(nn.Linear(8, 2), x)")
    expect(mine.get_by_role("status").filter(has_text="Linear under autocast")).to_contain_text(
        "3 casts inserted"
    )
    retype(page, mine, "DtypeTrace(nn.Linear(7, 2), x)")
    wrong = cell_with(page, "DtypeTrace(nn.Linear(7, 2), x)")
    expect(wrong.get_by_role("status").filter(has_text="Nothing changed")).to_contain_text(
        "raised RuntimeError"
    )
