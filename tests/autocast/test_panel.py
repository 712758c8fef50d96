"""The panel without a browser: its controls drive it, faults are reported in place,
and it redraws from stored traces.
"""

import html
import itertools
import json
import re

import pytest
import torch
from torch import nn

from amp_course.autocast import is_fake
from amp_course.autocast.panel import _SETTINGS, DtypeTrace
from amp_course.autocast.trace import trace
from amp_course.autocast.trace_html import panel_html


@pytest.fixture(scope="module")
def panel():
    return DtypeTrace()


@pytest.fixture(autouse=True)
def fresh_choice(request):
    if "panel" in request.fixturenames:
        panel = request.getfixturevalue("panel")
        panel.model.value, panel.policy.value = "SimpleNet", "cpu"
        panel.dtype.value, panel.phase.value = torch.bfloat16, "forward"


def text_of(panel):
    return html.unescape(re.sub(r"\s+", " ", re.sub("<[^>]+>", " ", panel.html)))


def test_opens_on_simple_net_under_the_cpus_policy(panel):
    said = text_of(panel)
    assert (
        'SimpleNet under autocast("cpu", bf16)' in said
        and "7 casts inserted (6 of weights, 1 of activations)" in said
    )
    assert (
        panel.module.value == "linear1" and "cast of linear1.weight, inserted by autocast" in said
    )
    assert panel.message == ""


def test_controls_change_the_view(panel):
    panel.dtype.value = torch.float16
    assert "fp16" in text_of(panel) and "bf16" not in text_of(panel)
    panel.dtype.value = None
    assert (
        "no autocast" in text_of(panel)
        and "0 casts inserted" in text_of(panel)
        and "fp16" not in text_of(panel)
    )
    panel.dtype.value, panel.phase.value = torch.bfloat16, "backward"
    assert "6 gradients cast back" in text_of(panel) and "ToCopyBackward0" in text_of(panel)
    panel.phase.value, panel.module.value = "forward", "(model)"
    assert "▸ (model)" in text_of(panel) and "relu" in text_of(panel)


@pytest.mark.skipif(not is_fake("cuda"), reason="there is a GPU")
def test_cuda_is_said_to_be_fake(panel):
    panel.policy.value = "cuda"
    assert "fake" in text_of(panel) and "fake" in panel.policy.texts[1]
    assert "No backward pass: autograd needs a real GPU" in panel.message
    panel.phase.value = "backward"
    assert "No backward pass: autograd needs a real GPU" in text_of(panel)


def test_a_choice_made_before_is_not_traced_again(panel, monkeypatch):
    panel.dtype.value = torch.float16
    monkeypatch.setattr(
        "amp_course.autocast.panel.run_trace", lambda *_: pytest.fail("traced again")
    )
    panel.dtype.value = torch.bfloat16
    panel.dtype.value = torch.float16
    panel.phase.value, panel.module.value = "backward", "linear2"


def test_what_is_recorded_for_a_page_shows_the_same(panel, monkeypatch):
    text = json.dumps(DtypeTrace.record(), separators=(",", ":"))
    assert len(text) < 200_000
    traces = {setting: panel._traced(setting) for setting in _SETTINGS}
    monkeypatch.setattr(
        "amp_course.autocast.panel.run_trace", lambda *_: pytest.fail("this has no torch")
    )
    live = DtypeTrace.of(json.loads(text))
    assert live.policy.texts == panel.policy.texts
    views = set()
    for setting in itertools.product(
        live.model.options, live.policy.options, live.dtype.options, live.phase.options
    ):
        live.model.value, live.policy.value, live.dtype.value, live.phase.value = setting
        assert live.module.options == [row.path for row in live.trace.modules]
        for path in live.module.options:
            live.module.value = path
            assert live.html == panel_html(traces[setting[:3]], setting[3], path)
            views.add(live.html)
        assert ("No backward pass" in live.message) == (setting[1] == "cuda" and is_fake("cuda"))
    assert len(views) > 150 and any("int64" in view for view in views)


class Fails(nn.Module):
    def forward(self, x):
        if x.dtype == torch.float32 and torch.get_autocast_dtype("cpu") == torch.float16:
            raise ValueError("<b>no fp16</b>")
        return x


def test_a_model_of_ones_own_and_what_it_raises():
    model = Fails()
    panel = DtypeTrace(model, torch.ones(2))
    assert panel.model.value == "yours: Fails" and "Fails under autocast" in text_of(panel)
    before = panel.html
    panel.dtype.value = torch.float16
    assert "Nothing changed" in panel.message and "&lt;b&gt;no fp16" in panel.message
    assert panel.html == before
    panel.dtype.value = torch.bfloat16
    assert "Nothing changed" not in panel.message


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("no model",), "needs an nn.Module"),
        ((nn.Linear(2, 2), torch.ones(3)), "raised RuntimeError"),
        ((nn.Linear(2, 2),), ""),
    ],
)
def test_a_bad_model_is_told_at_the_start_and_the_course_models_still_work(arguments, words):
    panel = DtypeTrace(*arguments)
    assert "Nothing changed" in panel.message and words in panel.message and panel.trace is None
    panel.model.value = "SimpleNet"
    assert "SimpleNet under" in text_of(panel)


def test_works_in_a_cell_under_no_grad_and_in_a_region_and_draws_nothing():
    before = torch.get_rng_state()
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.float16):
        panel = DtypeTrace()
    assert panel.trace.has_backward and "bf16" in text_of(panel)
    assert torch.equal(torch.get_rng_state(), before)


def test_long_lists_are_cut():
    class Many(nn.Module):
        def forward(self, x):
            for _ in range(100):
                x = x + 1
            return x

    view = panel_html(trace(Many(), torch.ones(2)), "forward", "(model)")
    assert "and 40 more ops" in view
