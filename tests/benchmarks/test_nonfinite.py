"""Tools on the same faults: what is counted for each is what its own report says,
and the record is what they say today.
"""

from __future__ import annotations

import json

import pytest
import torch

from benchmarks.interleaved import RESULTS
from benchmarks.nonfinite import Named, available_tools, compare_tools, main, table
from benchmarks.planted_nonfinite import FAULTS, SOUND

Compared = tuple[dict[str, dict[str, Named]], dict[str, list[str]]]


@pytest.fixture(scope="module")
def compared() -> Compared:
    return compare_tools()


def missed(compared: Compared, tool: str) -> set[str]:
    return {name for name, named in compared[0].items() if not named[tool].accuses}


@pytest.mark.slow
def test_first_nonfinite_names_all_and_accuses_nobody_as_recorded(compared: Compared) -> None:
    faults, sound = compared
    named = [one["first_nonfinite"] for one in faults.values()]
    assert all(one.op and one.module for one in named) and len(sound) == len(SOUND)
    assert not any("first_nonfinite" in accusers for accusers in sound.values())
    newest = max(RESULTS.glob("nonfinite-*.json"))
    recorded = {row[0]: row for row in json.loads(newest.read_text("utf-8"))["table"]}
    now = {row[0]: row for row in table(faults, sound)}
    for name in ("tool", "first_nonfinite"):
        assert now[name] == recorded[name]


def test_anomaly_mode_sees_backward_passes_alone(compared: Compared) -> None:
    faults, sound = compared
    of_optimizers = {fault.name for fault in FAULTS if fault.phase == "optimizer"}
    assert missed(compared, "detect_anomaly") >= of_optimizers
    assert faults["the root of zero"]["detect_anomaly"].line
    assert "detect_anomaly" in sound["a scaler that warms up"]  # lightning#9799


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
def test_anomaly_mode_itself_says_what_is_counted() -> None:
    setup = next(fault for fault in FAULTS if fault.name == "the root of zero").make()
    # It looks for NaN alone: it passes the root's inf, and stops at the product of that inf and 0.
    told, raised = (
        pytest.warns(UserWarning, match="# here"),
        pytest.raises(RuntimeError, match="MulBackward0"),
    )
    with told, raised, torch.autograd.detect_anomaly():
        setup.step()


def test_hooks_on_modules_see_forward_passes_alone(compared: Compared) -> None:
    backward = {fault.name for fault in FAULTS if fault.phase != "forward"}
    assert backward - {"where does not protect exp"} <= missed(compared, "hooks on modules")
    assert sum(one["hooks on modules"].module for one in compared[0].values()) > 20


def test_the_program_writes_its_record(compared: Compared, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setattr("benchmarks.nonfinite.compare_tools", lambda: compared)
    assert main(["--tiny", "--out", str(tmp_path)]) == 0
    (path,) = tmp_path.glob("nonfinite-*.json")
    record = json.loads(path.read_text("utf-8"))
    assert record["table"][1][:2] == ["first_nonfinite", str(len(FAULTS))]
    costs = record["times_the_step"]
    assert list(costs) == available_tools() and all(one["median"] > 0 for one in costs.values())
    assert "first_nonfinite" in capsys.readouterr().out
