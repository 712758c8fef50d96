"""The panel without a browser: its controls drive it, and it never throws."""

import base64
import importlib
import types

import pytest
import torch

from amp_course.kit.dtypes import DtypeSupport
from amp_course.loop import panel as panel_module
from amp_course.loop.panel import Measured, StepExplorer
from amp_course.loop.stepper import Stepper


@pytest.fixture
def panel():
    return StepExplorer()


def test_measure_runs_the_chosen_step_and_draws_a_bar(panel):
    panel.width.value, panel.batch.value = 64, 8
    panel.measure.click()
    (found,) = panel.results
    assert (found.width, found.batch, found.recipe) == (64, 8, "amp_bf16")
    assert found.fp32_seconds > 0 and found.seconds > 0
    assert "data:image/png;base64,iVBOR" in panel.view.value and panel.view.layout.display == ""
    assert 'alt="Speed-ups over fp32' in panel.view.value
    assert f"{found.speedup:.2f} times" in panel.message.value
    assert not panel.measure.disabled


@pytest.mark.parametrize(
    ("seconds", "state", "said"),
    [
        (0.01, "emulated", None),
        (0.04, "native", "AMP bf16 does not pay at this size: try a wider net"),
        (0.8, "emulated", "Matmuls in bf16 take 41.0 times as long as in fp32 on this machine"),
    ],
)
def test_a_slower_recipe_gets_advice_from_what_the_machine_can_do(
    panel, monkeypatch, seconds, state, said
):
    support = DtypeSupport("bf16", state, 0.1, 41.0)
    monkeypatch.setattr(panel_module, "dtype_support", lambda device: (support,))
    monkeypatch.setattr(
        panel_module, "measure_pair", lambda *args: Measured("amp_bf16", 64, 8, 0.02, seconds)
    )
    panel.measure.click()
    assert (
        (said in panel.message.value) if said else panel.message.value.endswith("as fast.</span>")
    )


def test_an_emulated_recipe_is_measured_within_its_limit(monkeypatch):
    """Both sides are given so many seconds; a step that takes longer than that is taken twice,
    for its memory.
    """
    now, taken = [0.0], {"fp32": 0, "amp_bf16": 0}
    costs = {"fp32": 0.03, "amp_bf16": 0.5}
    clock = types.SimpleNamespace(monotonic=lambda: now[0], perf_counter=lambda: now[0])
    for name in ("amp_course.loop.train", "amp_course.kit.measure"):
        monkeypatch.setattr(importlib.import_module(name), "time", clock)
    real = Stepper.step

    def step(self, *batch):
        name = "fp32" if self.dtype is None else "amp_bf16"
        now[0] += costs[name]
        taken[name] += 1
        return real(self, *batch)

    monkeypatch.setattr(Stepper, "step", step)
    found = panel_module.measure_pair("amp_bf16", 16, 4, torch.device("cpu"))
    assert taken == {"fp32": 36, "amp_bf16": 4}
    assert found.speedup == pytest.approx(0.06)


@pytest.mark.slow
def test_each_measurement_stays_until_cleared(panel, monkeypatch):
    monkeypatch.setattr(
        panel_module, "measure_pair", lambda *args: Measured("amp_bf16", 64, 8, 0.02, 0.01)
    )
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
