"""`RankExplorer` without a browser: every control reaches the simulation, what was shown is kept,
and the menus stay sound.
"""

import itertools
import json

import pytest

from amp_course.distributed import panel as module
from amp_course.distributed.panel import ALL, IN_TURN, PATTERNS, RankExplorer, plan_outliers
from amp_course.distributed.panel_html import run_view
from amp_course.distributed.simulation import AGREEMENTS, simulate

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def made():
    return RankExplorer()


@pytest.fixture
def panel(made):
    made.agreement.value, made.ranks.value, made.pattern.value, made.where.value = (
        "nothing",
        4,
        "once",
        1,
    )
    made.steps.value, made.first.value, made.growth.value = 30, 13, 8
    return made


def test_it_opens_on_the_fault(panel):
    assert panel.run == simulate(4, "nothing", {12: [1]}, steps=30, growth_interval=8)
    assert panel.html == run_view(panel.run)
    assert [sum(skips) for skips in panel.run.skipped] == [0, 1, 0, 0]


@pytest.mark.parametrize("agreement", AGREEMENTS)
def test_each_agreement_is_simulated(panel, agreement):
    panel.agreement.value = agreement
    assert panel.run == simulate(4, agreement, {12: [1]})
    assert (len(panel.run.groups()) == 1) is (agreement != "nothing")


def test_every_control_changes_what_is_simulated(panel):
    panel.ranks.value, panel.pattern.value, panel.where.value = 2, "every 5th step", IN_TURN
    panel.first.value, panel.steps.value, panel.growth.value = 4, 20, 4
    assert panel.run == simulate(
        2, "nothing", {3: [0], 8: [1], 13: [0], 18: [1]}, steps=20, growth_interval=4
    )
    panel.growth.value = None
    assert panel.run == simulate(
        2, "nothing", {3: [0], 8: [1], 13: [0], 18: [1]}, steps=20, growth_interval=None
    )


def test_every_combination_of_menus_is_drawn(panel, monkeypatch):
    monkeypatch.setattr(
        module, "simulate", lambda ranks, agreement, plan, steps, growth: (ranks, agreement, plan)
    )
    monkeypatch.setattr(module, "run_view", repr)
    panel._runs = {}
    for ranks, agreement, pattern in itertools.product((2, 4, 8), AGREEMENTS, PATTERNS):
        panel.ranks.value, panel.agreement.value, panel.pattern.value = ranks, agreement, pattern
        for where in panel.where.options:
            panel.where.value = where
            plan = plan_outliers(pattern, where, 12, ranks, 30)
            assert panel.run == (ranks, agreement, plan) and panel.html == repr(panel.run)
            assert all(rank < ranks for on in plan.values() for rank in on)
    panel._runs = {}


def test_what_was_shown_is_not_simulated_again(panel, monkeypatch):
    first = panel.run
    panel.agreement.value = "found_inf agreed"
    monkeypatch.setattr(module, "simulate", None)
    panel.agreement.value = "nothing"
    assert panel.run is first


def test_where_keeps_a_rank_that_is_still_there(panel):
    panel.ranks.value = 8
    panel.where.value = 7
    panel.ranks.value = 2
    assert panel.where.value == 1 and panel.where.options == [0, 1, IN_TURN, ALL]
    panel.where.value = ALL
    panel.ranks.value = 4
    assert panel.where.value == ALL and all(map(any, panel.run.skipped))


def test_a_change_of_ranks_or_steps_redraws_once(panel, monkeypatch):
    calls = []
    monkeypatch.setattr(module, "run_view", lambda run: calls.append(run.ranks) or "")
    panel.where.value = 3
    calls.clear()
    panel.ranks.value = 2
    assert calls == [2]
    panel.first.value = 30
    calls.clear()
    panel.steps.value = 10
    assert calls == [2] and panel.first.value == panel.first.options[-1] == 10
    panel.steps.value = 40
    assert panel.first.options == range(1, 41)


def test_without_outliers_their_controls_are_off(panel):
    panel.pattern.value = "never"
    assert panel.where.disabled and panel.first.disabled and not any(map(any, panel.run.skipped))
    panel.pattern.value = "once"
    assert not panel.where.disabled and not panel.first.disabled


@pytest.mark.parametrize(
    ("arguments", "plan"),
    [
        (("never", 1, 3, 4, 30), {}),
        (("once", 1, 12, 4, 30), {12: (1,)}),
        (("once", ALL, 12, 2, 13), {12: (0, 1)}),
        (("once", IN_TURN, 0, 4, 30), {0: (0,)}),
        (("every 5th step", 1, 4, 4, 15), {4: (1,), 9: (1,), 14: (1,)}),
        (("every 5th step", IN_TURN, 0, 2, 15), {0: (0,), 5: (1,), 10: (0,)}),
        (("bursts of 3", IN_TURN, 1, 4, 13), {1: (0,), 2: (0,), 3: (0,), 11: (1,), 12: (1,)}),
        (("bursts of 3", 3, 9, 4, 10), {9: (3,)}),
    ],
)
def test_schedules(arguments, plan):
    assert plan_outliers(*arguments) == plan


def test_what_is_recorded_for_a_page_shows_the_same(panel, monkeypatch):
    monkeypatch.setattr(module, "_RANKS", (2,))  # else it takes a minute
    text = json.dumps(RankExplorer.record(), separators=(",", ":"))
    live = RankExplorer.of(json.loads(text))
    assert "These runs were recorded" in live.message and panel.message == ""
    assert all(one.disabled for one in (live.steps, live.first, live.growth))
    assert not live.where.disabled
    assert not panel.steps.disabled
    monkeypatch.setattr(module, "simulate", lambda *settings: pytest.fail("this has no torch"))
    shown = {live.html}
    for agreement, pattern, where in itertools.product(AGREEMENTS, PATTERNS, live.where.options):
        live.agreement.value, live.pattern.value, live.where.value = agreement, pattern, where
        plan = plan_outliers(pattern, where, 12, 2, 30)
        assert live.html == run_view(simulate(2, agreement, plan))
        assert live.where.disabled is (pattern == "never") and live.first.disabled
        shown.add(live.html)
    assert len(shown) == 3 * 9 + 2 and live.where.texts == ["rank 1", IN_TURN, ALL]


def test_controls_have_names_and_explanations(panel):
    controls = (
        panel.agreement,
        panel.ranks,
        panel.pattern,
        panel.where,
        panel.first,
        panel.steps,
        panel.growth,
    )
    assert len({control.label for control in controls}) == len(controls)
    assert all(control.label and control.tip for control in controls)
