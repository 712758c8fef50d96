"""The panel without a browser: its controls drive it, and it never throws."""

import base64

import pytest

from amp_course.loop import panel as panel_module
from amp_course.loop.panel import Measured, StepExplorer


@pytest.fixture
def panel():
    return StepExplorer()


def test_measure_runs_the_chosen_step_and_draws_a_bar(panel):
    panel.width.value, panel.batch.value = 64, 8
    panel.measure.click()
    (found,) = panel.results
    assert (found.width, found.batch, found.recipe) == (64, 8, "amp_bf16")
    assert found.fp32_seconds > 0 and found.seconds > 0
    assert bytes(panel.view.value).startswith(b"\x89PNG") and panel.view.layout.display == ""
    assert f"{found.speedup:.2f} times" in panel.message.value
    assert not panel.measure.disabled


def test_each_measurement_stays_until_cleared(panel, monkeypatch):
    monkeypatch.setattr(panel_module, "measure_pair", lambda *args: Measured("amp_bf16", 64, 8, 0.02, 0.01))
    for _ in range(20):
        panel.measure.click()
    assert len(panel.results) == 12
    panel.clear.click()
    assert panel.results == [] and panel.view.layout.display == "none"


def test_running_out_of_memory_is_told_in_place(panel, monkeypatch):
    def fail(*args):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: <b>you tried</b>\nmore")

    monkeypatch.setattr(panel_module, "measure_pair", fail)
    panel.measure.click()
    assert "choose a smaller width or batch" in panel.message.value
    assert "&lt;b&gt;you tried" in panel.message.value
    assert not panel.measure.disabled


def test_a_page_without_a_kernel_gets_a_picture(panel):
    bundle, _ = panel._repr_mimebundle_()
    assert base64.b64decode(bundle["image/png"]).startswith(b"\x89PNG")
    assert bundle["text/plain"] == "StepExplorer()"


def test_controls_have_names_and_explanations(panel):
    for control in (panel.width, panel.batch, panel.recipe, panel.measure, panel.clear):
        assert control.description
    assert panel.width.tooltip and panel.batch.tooltip and panel.measure.tooltip
