"""`LoopWorkbench` without a browser: the text shown is the text that runs, its audit is the audit,
and it never throws.
"""

import html
import json
import re

import pytest
import torch

from amp_course.patterns import panel as panel_module
from amp_course.patterns.panel import OWN, PRESETS, LoopWorkbench
from amp_course.patterns.workbench import Switches, build_loop, source_of


@pytest.fixture(scope="module")
def made():
    return LoopWorkbench()


@pytest.fixture
def panel(made):
    made.start.value = "the right loop"
    return made


def shown_source(panel):
    """Return what one copies: all lines but those that only the right loop has."""
    code = re.search(r"<pre[^>]*>(.*?)</pre>", panel.html, flags=re.S)[1]
    rows = re.findall(r"<div[^>]*>(.*?)</div>", code, flags=re.S)
    kept = [re.sub(r"<[^>]+>", "", row)[2:] for row in rows if "<del" not in row]
    return html.unescape("\n".join(kept)) + "\n"


@pytest.mark.parametrize("name", ["the right loop", "three faults at once"])
def test_the_loop_shown_is_the_loop_that_is_run(panel, name):
    panel.start.value = name
    assert shown_source(panel) == panel.source == build_loop(PRESETS[name])[0]


def test_mending_one_fault_brings_the_next_to_light(panel):
    panel.start.value = "three faults at once"
    assert panel.audit.names == ("clipped-while-scaled", "scheduler-ran-on")
    assert "✗ 2 faults: clipped-while-scaled, scheduler-ran-on" in panel.html
    panel.switches["clip"].value = "after unscale"
    assert panel.start.value == OWN
    assert panel.audit.names == ("sum-not-mean", "scheduler-ran-on")
    panel.switches["divide"].value = True
    assert panel.start.value == "scheduler runs on"
    panel.switches["wait"].value = True
    assert panel.start.value == "the right loop" and not panel.audit.findings
    assert "✗" not in panel.html


def test_choosing_ones_own_changes_nothing(panel):
    assert list(panel.switches) == list(Switches.CHOICES)
    assert all(control.label and control.tip for control in panel.controls())
    panel.start.value = "not clipped"
    before = panel.html
    panel.start.value = OWN
    assert panel.html == before and panel.chosen == PRESETS["not clipped"]


def test_a_switch_without_effect_is_disabled_and_says_so(panel):
    panel.switches["update"].value = "never"
    assert panel.switches["wait"].disabled and "has no effect" in panel.message
    panel.switches["update"].value = "once"
    assert not panel.switches["wait"].disabled and not panel.message


def test_a_loop_that_cannot_be_audited_gets_a_message_and_the_view_stays(panel, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("<b>no</b> memory")

    monkeypatch.setattr(panel_module, "run_audit", broken)
    panel._audits.pop(source_of(Switches(divide=False)), None)
    before = panel.html
    panel.switches["divide"].value = False
    assert (
        "could not be audited: &lt;b&gt;no&lt;/b&gt; memory" in panel.message
        and panel.html == before
    )
    panel.switches["divide"].value = True
    assert not panel.message


def test_every_loop_is_recorded():
    # Where the scale is not updated once, the schedule cannot wait: 4 · 2 · 3 · (2 + 1 + 1) loops.
    assert len({source_of(switches) for switches in panel_module._all_switches()}) == 96


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_what_is_recorded_for_a_page_shows_the_same(panel, monkeypatch, every):
    everything = panel_module._all_switches()
    names = list(PRESETS) if every else list(PRESETS)[::4]
    if not every:
        monkeypatch.setattr(panel_module, "_all_switches", lambda: [PRESETS[one] for one in names])
    text = json.dumps(LoopWorkbench.record(), separators=(",", ":"))
    assert len(text) < 200_000
    live = LoopWorkbench.of(json.loads(text))

    def shown(one):
        for name in names:
            one.start.value = name
            yield one.html, one.message, one.audit.names
        for switches in everything if every else ():
            for name, menu in one.switches.items():
                menu.value = getattr(switches, name)
            yield one.html, one.message, one.start.value

    expected = [*shown(panel)]
    monkeypatch.setattr(panel_module, "run_audit", lambda _: pytest.fail("this has no torch"))
    assert [*shown(live)] == expected
    assert len({view for view, _, _ in expected}) == (96 if every else len(names))


def test_threads_and_random_stream_are_left_alone(panel):
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    panel._audits.clear()
    panel.start.value = "not clipped"
    assert torch.get_num_threads() == threads and torch.equal(torch.get_rng_state(), state)
