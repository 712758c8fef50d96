"""`HeadroomMap` without a browser: the slider and the menu choose, the buttons jump."""

from __future__ import annotations

import json

import pytest

from amp_course.debugging import dying as module
from amp_course.debugging.panel import HeadroomMap
from amp_course.debugging.panel_html import headroom_view
from amp_course.watching.readings import KINDS
from tests.debugging.runs import dying, living


@pytest.fixture
def panel() -> HeadroomMap:
    return HeadroomMap(dying())


def test_it_opens_where_the_run_died_on_the_activations(panel: HeadroomMap) -> None:
    assert panel.run.death == panel.step.value == 6
    assert panel.step.options == range(1, 7)
    assert panel.kind.value == "activation" and panel.kind.options == [*KINDS]
    assert HeadroomMap(living()).step.value == len(living().losses)
    assert all(control.label and control.tip for control in panel.controls())


def test_the_slider_and_the_menu_redraw(panel: HeadroomMap) -> None:
    panel.step.value = 4
    assert panel.html == headroom_view(panel.run, "activation", 4)
    panel.kind.value = "weight gradient"
    assert panel.html == headroom_view(panel.run, "weight gradient", 4)
    assert "head.weight" in panel.html and "block1" not in panel.html


def test_the_first_heat_is_the_first_with_two_doublings_left(panel: HeadroomMap) -> None:
    panel.first_heat.click()
    assert panel.step.value == 3  # block2's 32,768; 4,096 in step 2 has four doublings left
    assert "Step 3: block2 is the first whose activation comes within 2 doublings" in panel.message
    panel.step.value = 4
    assert panel.message == ""


def test_the_first_inf_or_nan_is_not_the_first_overflow(panel: HeadroomMap) -> None:
    panel.first_nonfinite.click()
    assert panel.step.value == 6  # the head's 70,000 in step 5 is finite
    assert "Step 6: block2 is the first whose activation holds an inf or a NaN." in panel.message


def test_the_buttons_go_by_the_chosen_kind(panel: HeadroomMap) -> None:
    panel.kind.value = "weight gradient"
    for button in (panel.first_heat, panel.first_nonfinite):
        panel.step.value = 1
        button.click()
        assert panel.step.value == 5 and "head.weight" in panel.message


def test_a_run_that_never_dies_and_a_kind_that_was_not_measured_are_reported() -> None:
    panel = HeadroomMap(living())
    panel.step.value = 2
    panel.first_heat.click()
    assert "No activation of this run comes within 2 doublings of the end" in panel.message
    panel.first_nonfinite.click()
    assert "No activation of this run holds an inf or a NaN." in panel.message
    assert panel.step.value == 2 and "The run died" not in panel.html
    panel.kind.value = "weight"
    assert "No weight was measured in this step." in panel.html and "<svg" not in panel.html


def test_without_a_run_it_records_one(monkeypatch: pytest.MonkeyPatch) -> None:
    run = living()
    monkeypatch.setattr(module, "record_dying_run", lambda: run)
    assert HeadroomMap().run is run


def test_what_is_recorded_for_a_page_shows_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    run = module.record_dying_run()
    monkeypatch.setattr(module, "record_dying_run", lambda: run)
    text = json.dumps(HeadroomMap.record(), separators=(",", ":"))
    assert len(text) < 150_000
    here, there = HeadroomMap(run), HeadroomMap.of(json.loads(text))
    assert here.step.options == there.step.options and here.step.value == there.step.value
    for kind in KINDS:
        here.kind.value = there.kind.value = kind
        for name in ("first_heat", "first_nonfinite"):
            getattr(here, name).click()
            getattr(there, name).click()
            assert here.message == there.message and here.step.value == there.step.value
        for step in (1, 30, len(run.losses)):
            here.step.value = there.step.value = step
            assert here.html == there.html
