"""Tools on the same faults: what is counted for each is what its own report says."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from amp_course.debugging.comparison import TOOLS, Comparison, Costs, available_tools, compare_tools, relative_costs
from amp_course.debugging.planted import FAULTS, SOUND
from amp_course.speed.experiments.in_turn import Comparison as Timed


@pytest.fixture(scope="module")
def compared() -> Comparison:
    return compare_tools()


@pytest.mark.slow
def test_first_nonfinite_names_all_and_accuses_nobody(compared: Comparison) -> None:
    for what in ("accuses", "op", "module"):
        assert compared.count("first_nonfinite", what) == len(FAULTS)
    assert not any("first_nonfinite" in accusers for accusers in compared.sound.values())
    assert len(compared.sound) == len(SOUND)


def test_anomaly_mode_sees_backward_passes_alone(compared: Comparison) -> None:
    assert set(compared.missed("detect_anomaly")) >= {fault.name for fault in FAULTS if fault.phase == "optimizer"}
    assert compared.faults["the root of zero"]["detect_anomaly"].line
    assert "detect_anomaly" in compared.sound["a scaler that warms up"]  # lightning#9799


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
def test_anomaly_mode_itself_says_what_is_counted() -> None:
    setup = next(fault for fault in FAULTS if fault.name == "the root of zero").make()
    # It looks for NaN alone: it passes the root's inf, and stops at the product of that inf and 0.
    told, raised = pytest.warns(UserWarning, match="# here"), pytest.raises(RuntimeError, match="MulBackward0")
    with told, raised, torch.autograd.detect_anomaly():
        setup.step()


def test_hooks_on_modules_see_forward_passes_alone(compared: Comparison) -> None:
    backward = {fault.name for fault in FAULTS if fault.phase != "forward"}
    assert backward - {"where does not protect exp"} <= set(compared.missed("hooks on modules"))
    assert compared.count("hooks on modules", "module") > 20


def test_the_table_has_a_row_for_each_tool(compared: Comparison) -> None:
    rows = compared.rows()
    assert [row[0] for row in rows[1:]] == available_tools()
    assert rows[1][1:3] == [str(len(FAULTS))] * 2
    assert str(len(FAULTS)) in compared._repr_html_() and "first_nonfinite" in str(compared)
    assert set(available_tools()) <= set(TOOLS)


def test_costs_are_those_of_one_run_in_turn() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
    costs = relative_costs(lambda: model(torch.ones(8, 64)).sum().backward(), model, seconds=0.1)
    assert list(costs.comparison.seconds) == ["bare", *available_tools()]
    assert all(costs.times(tool) > 0 for tool in available_tools())
    assert not model[0]._forward_hooks


def test_costs_in_words_and_on_a_busy_machine() -> None:
    times = {"bare": (1.0,) * 5, "first_nonfinite": (2.5,) * 5, "hooks on modules": (0.8, 1.3, 0.9, 1.2, 1.0)}
    costs = Costs(Timed(times, dict.fromkeys(times, "bare"), 1, {}))
    assert str(costs).splitlines() == [
        "first_nonfinite        2.5 times the step",
        "hooks on modules       as long as the step, as far as this run can tell",
    ]
    busy = str(Costs(dataclasses.replace(costs.comparison, waited=0.5)))
    assert busy.startswith("This machine was too busy to tell") and "times the step" not in busy
