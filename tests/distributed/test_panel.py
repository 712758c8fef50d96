"""`RankExplorer` without a browser: every control reaches the simulation, runs are cached, and
menus stay consistent.
"""

import itertools
import json

import pytest

from amp_course.distributed import panel as module
from amp_course.distributed.panel import ALL, IN_TURN, PATTERNS, RankExplorer, plan_outliers
from amp_course.distributed.panel_html import run_view
from amp_course.distributed.simulation import AGREEMENTS, simulate

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def simulated(monkeypatch):
    """The settings that the panel simulates, in order; nothing is simulated here."""
    settings = []
    monkeypatch.setattr(module, "simulate", lambda *one: settings.append(one) or one)
    monkeypatch.setattr(module, "run_view", repr)
    return settings


@pytest.fixture
def panel(simulated):
    return RankExplorer()


def test_it_opens_on_the_fault(panel, simulated):
    assert simulated == [(4, "nothing", {12: (1,)}, 30, 8)] and panel.html == repr(panel.run)


def test_every_control_changes_what_is_simulated(panel, simulated):
    panel.agreement.value, panel.ranks.value = "found_inf agreed", 2
    panel.pattern.value, panel.where.value = "every 5th step", IN_TURN
    panel.first.value, panel.steps.value, panel.growth.value = 4, 20, None
    plan = {3: (0,), 8: (1,), 13: (0,), 18: (1,)}
    assert simulated[-1] == (2, "found_inf agreed", plan, 20, None)


def test_every_combination_of_menus_is_drawn(panel):
    for ranks, agreement, pattern in itertools.product((2, 4, 8), AGREEMENTS, PATTERNS):
        panel.ranks.value, panel.agreement.value, panel.pattern.value = ranks, agreement, pattern
        for where in panel.where.options:
            panel.where.value = where
            plan = plan_outliers(pattern, where, 12, ranks, 30)
            assert panel.run == (ranks, agreement, plan, 30, 8) and panel.html == repr(panel.run)
            assert all(rank < ranks for on in plan.values() for rank in on)


def test_what_was_shown_is_not_simulated_again(panel, simulated):
    first = panel.run
    panel.agreement.value = "found_inf agreed"
    panel.agreement.value = "nothing"
    assert panel.run is first and len(simulated) == 2


def test_where_keeps_a_rank_that_is_still_there(panel):
    panel.ranks.value = 8
    panel.where.value = 7
    panel.ranks.value = 2
    assert panel.where.value == 1 and panel.where.options == [0, 1, IN_TURN, ALL]
    panel.where.value = ALL
    panel.ranks.value = 4
    assert panel.where.value == ALL and panel.run[2] == {12: (0, 1, 2, 3)}


def test_a_change_of_ranks_or_steps_redraws_once(panel, monkeypatch):
    drawn = []
    monkeypatch.setattr(module, "run_view", lambda run: drawn.append(run[0]) or "")
    panel.where.value = 3
    panel.ranks.value = 2
    assert drawn == [4, 2]
    panel.first.value = 30
    panel.steps.value = 10
    assert drawn == [4, 2, 2, 2] and panel.first.value == panel.first.options[-1] == 10
    panel.steps.value = 40
    assert panel.first.options == range(1, 41)


def test_without_outliers_their_controls_are_off(panel):
    panel.pattern.value = "never"
    assert panel.where.disabled and panel.first.disabled and not panel.run[2]
    panel.pattern.value = "once"
    assert not panel.where.disabled and not panel.first.disabled


@pytest.mark.parametrize(
    ("arguments", "plan"),
    [
        (("never", 1, 3, 4, 30), {}),
        (("once", 1, 12, 4, 30), {12: (1,)}),
        (("once", ALL, 12, 2, 13), {12: (0, 1)}),
        (("every 5th step", 1, 4, 4, 15), {4: (1,), 9: (1,), 14: (1,)}),
        (("every 5th step", IN_TURN, 0, 2, 15), {0: (0,), 5: (1,), 10: (0,)}),
        (("bursts of 3", IN_TURN, 1, 4, 13), {1: (0,), 2: (0,), 3: (0,), 11: (1,), 12: (1,)}),
    ],
)
def test_schedules(arguments, plan):
    assert plan_outliers(*arguments) == plan


def test_what_is_recorded_for_a_page_shows_the_same(monkeypatch):
    runs = {}

    def recording(ranks, agreement, plan, steps, growth):
        run = simulate(ranks, agreement, plan, steps, growth)
        return runs.setdefault((agreement, tuple(plan.items())), run)

    patterns = ("never", "once")  # all of them take a minute
    monkeypatch.setattr(module, "_RANKS", (2,))
    monkeypatch.setattr(module, "PATTERNS", {name: PATTERNS[name] for name in patterns})
    monkeypatch.setattr(module, "simulate", recording)
    text = json.dumps(RankExplorer.record(), separators=(",", ":"))
    monkeypatch.setattr(module, "simulate", lambda *settings: pytest.fail("the page has no torch"))
    live = RankExplorer.of(json.loads(text))
    assert "These runs were recorded" in live.message
    assert all(one.disabled for one in (live.steps, live.first, live.growth))
    assert live.where.texts == ["rank 1", IN_TURN, ALL] and not live.where.disabled
    shown = {live.html}
    for agreement, pattern, where in itertools.product(AGREEMENTS, patterns, live.where.options):
        live.agreement.value, live.pattern.value, live.where.value = agreement, pattern, where
        plan = plan_outliers(pattern, where, 12, 2, 30)
        assert live.html == run_view(runs[agreement, tuple(plan.items())])
        assert live.where.disabled is (pattern == "never") and live.first.disabled
        shown.add(live.html)
    assert len(shown) == 3 * 3 + 2
