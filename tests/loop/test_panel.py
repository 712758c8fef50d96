"""The panel without a browser: its controls drive it, and it never throws."""

import importlib
import re
import types

import pytest
import torch

from amp_course.kit.dtypes import DtypeSupport
from amp_course.loop import panel as panel_module
from amp_course.loop.panel import Measured, StepExplorer
from amp_course.loop.panel_html import speed_ups_view
from amp_course.loop.stepper import Stepper


@pytest.fixture
def panel():
    return StepExplorer()


def test_measure_runs_the_chosen_step_and_draws_a_bar(panel):
    panel.width.value, panel.batch.value = 64, 8
    panel._supports = (DtypeSupport("bf16", "native", 0.1, 1.0),)
    panel.measure.click()
    (found,) = panel.results
    assert (found.width, found.batch, found.recipe) == (64, 8, "amp_bf16")
    assert found.fp32_seconds > 0 and found.seconds > 0
    words = re.search(r'<svg role="img" aria-label="([^"]*)"', panel.html)[1]
    assert words == f"Speed-ups over fp32, one bar each. {found.label}: {found.speedup:.2f}."
    assert f"{found.speedup:.2f} times" in panel.message
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
    assert (said in panel.message) if said else panel.message.endswith("as fast.")


def test_an_emulated_recipe_is_measured_within_its_limit(monkeypatch):
    """A step that takes longer than its side's seconds is taken twice, for its memory."""
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


def test_each_measurement_stays_until_cleared(panel):
    assert all(control.label and control.tip for control in panel.controls())
    panel.show([Measured("amp_bf16", 64, 8, 0.02, 0.01)] * 20)
    assert len(panel.results) == 12 and panel.html
    panel.clear.click()
    assert panel.results == [] and panel.html == ""


def test_running_out_of_memory_is_told_in_place(panel, monkeypatch):
    def fail(*args):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: <b>you tried</b>\nmore")

    monkeypatch.setattr(panel_module, "measure_pair", fail)
    panel.measure.click()
    assert "choose a smaller width or batch" in panel.message
    assert "&lt;b&gt;you tried" in panel.message
    assert not panel.measure.disabled


def test_a_reader_sees_that_it_measures(panel, monkeypatch):
    shown = []
    panel.fronts.append(lambda: shown.append((panel.message[:9], panel.measure.disabled)))
    monkeypatch.setattr(
        panel_module, "measure_pair", lambda *args: Measured("amp_bf16", 64, 8, 0.02, 0.01)
    )
    panel.measure.click()
    assert shown[0] == ("measuring", True) and shown[-1] == ("AMP bf16,", False)


def test_a_busy_machine_adds_no_bar(panel, monkeypatch):
    busy = Measured("amp_bf16", 64, 8, 0.02, 0.01, "too busy")
    monkeypatch.setattr(panel_module, "measure_pair", lambda *args: busy)
    panel.measure.click()
    assert panel.message == "too busy" and not panel.results and not panel.html


def test_bars_are_as_long_as_the_speed_ups_and_the_line_is_at_one():
    def line(view):
        return float(re.search(r'x1="([\d.]+)"[^>]*stroke-dasharray', view)[1])

    view = speed_ups_view([("amp_bf16", "a", 2.0), ("amp_fp16", "b", 0.5)])
    bars = [float(w) for w in re.findall(r'<rect x="240.0"[^>]*width="([\d.]+)"', view)]
    assert bars[0] == 4 * bars[1] == 2 * (line(view) - 240) > 400
    assert "2.00 ×" in view and "0.50 ×" in view
    assert line(speed_ups_view([("amp_fp16", "a", 0.01)])) == 650  # still in the picture
