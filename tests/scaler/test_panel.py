"""`ScaleExplorer` without a browser: its shares are those of rounding, its window is right,
and it never throws.
"""

import json
import re

import pytest
import torch
from torch import nn

from amp_course.bits.formats import BF16, FP8_E4M3, FP8_E5M2, FP16
from amp_course.kit.markup import percent
from amp_course.scaler.panel import ScaleExplorer
from amp_course.scaler.panel_html import verdict
from amp_course.scaler.recording import record_gpt
from amp_course.scaler.window import Gradients, Window, count_sizes, find_window
from amp_course.underflow import GradientRecorder, zone_fractions


@pytest.fixture(scope="module")
def recorded():
    return record_gpt(steps=2)


@pytest.fixture(scope="module")
def made(recorded):
    return ScaleExplorer(recorded)


@pytest.fixture
def panel(made):
    made.kind.value, made.layer.value = "outputs", "all layers"
    made.format.value, made.exponent.value = FP16, 0
    return made


def shown(panel):
    text = re.sub(r"<svg.*?</svg>", "", panel.html, flags=re.S)
    return dict(re.findall(r"(lost|subnormal|normal|overflow) <b>(.*?)</b>", text))


@pytest.mark.parametrize("exponent", [-10, 33])
@pytest.mark.parametrize("kind", ["outputs", "weights"])
def test_shares_are_those_of_scaling_and_rounding_every_gradient(panel, recorded, kind, exponent):
    panel.kind.value, panel.exponent.value = kind, exponent
    want = zone_fractions(torch.cat(list(getattr(recorded, kind).values())), FP16, 2.0**exponent)
    assert shown(panel) == {
        zone: percent(getattr(want, zone)) for zone in ("lost", "subnormal", "normal", "overflow")
    }


def test_one_layer_and_another_format(panel, recorded):
    panel.layer.value, panel.format.value, panel.exponent.value = "blocks.1.qkv", FP8_E4M3, 20
    want = zone_fractions(recorded.outputs["blocks.1.qkv"], FP8_E4M3, 2.0**20)
    assert shown(panel)["lost"] == percent(want.lost)
    gradients = Gradients(count_sizes(recorded.outputs["blocks.1.qkv"]))
    assert panel.window == find_window(gradients.sweep(FP8_E4M3))


def test_every_layer_of_both_kinds_can_be_seen(panel):
    assert all(control.label and control.tip for control in panel.controls())
    for kind in ("outputs", "weights"):
        panel.kind.value = kind
        for layer in panel.layer.options:
            panel.layer.value = layer
            assert not panel.message
            assert "useful" in panel.html


def test_a_layer_is_kept_where_the_other_kind_has_it(panel):
    panel.layer.value = "head"
    panel.kind.value = "weights"
    assert panel.layer.value == "head"
    assert panel.layer.options[0] == "all layers" and "blocks.0.qkv" in panel.layer.options


def test_the_sentence_names_the_scale_and_its_use(panel):
    low, high = panel.window.lowest, panel.window.highest
    said = {low - 1: "too small", low: "useful", high: "useful", high + 1: "too large"}
    for exponent, words in said.items():
        panel.exponent.value = exponent
        assert f"is <b>{words}</b>" in panel.html
        assert f"{2**exponent:,}" in panel.html
    panel.format.value = BF16
    assert "is <b>useful</b>: 0.0 % of the gradients are lost" in panel.html


def test_a_sentence_for_a_scale_below_one_and_for_no_window():
    shares = {"lost": 0.5, "subnormal": 0.0, "normal": 0.5, "overflow": 0.0}
    said = verdict(shares, -3, Window(0, 4))
    assert "2⁻³ = 1/8 is <b>too small</b>: 50.0 % of the gradients become 0" in said
    said = verdict({**shares, "overflow": 0.1}, 3, None)
    assert said.endswith("No scale from 2⁻¹⁰ to 2⁴⁰ is useful.")


def test_takes_the_readers_own_recording_and_says_what_is_none():
    model = nn.Linear(4, 2)
    with GradientRecorder(model) as recorder:
        model(torch.ones(3, 4)).sum().backward()
    panel = ScaleExplorer(recorder)
    assert panel.layer.options == ["all layers", "(model)"]
    with pytest.raises(TypeError, match="this is a Linear: pass a GradientRecorder"):
        ScaleExplorer(model)
    with pytest.raises(ValueError, match="nothing was recorded"):
        ScaleExplorer(GradientRecorder(model))


def test_a_layer_without_a_gradient_gets_a_message_and_the_view_stays():
    model = nn.Sequential(nn.Linear(4, 2), nn.ReLU())
    with GradientRecorder(model) as recorder:
        (
            model[1](model[0](torch.ones(3, 4)) - 1e3) + model[0](torch.ones(3, 4)).sum()
        ).sum().backward()
    recorder._of_outputs["1"] = [torch.zeros(3)]
    panel = ScaleExplorer(recorder)
    before = panel.html
    panel.layer.value = "1"
    assert "All gradients of 1 are 0 or NaN" in panel.message and panel.html == before
    panel.layer.value = "all layers"
    assert not panel.message


def test_what_the_book_keeps_of_a_recording_shows_the_same(panel, recorded):
    recorded_text = json.dumps(ScaleExplorer.record(recorded))
    assert len(recorded_text) < 100_000
    live = ScaleExplorer.of(json.loads(recorded_text))
    for kind, layer, fmt, exponent in (
        ("outputs", "all layers", FP16, 0),
        ("outputs", "blocks.1.qkv", FP8_E4M3, 40),
        ("weights", "head", BF16, -10),
        ("weights", "all layers", FP8_E5M2, 17),
    ):
        for one in (panel, live):
            one.kind.value, one.layer.value = kind, layer
            one.format.value, one.exponent.value = fmt, exponent
        assert live.html == panel.html
    live.format.value, live.exponent.value = FP8_E4M3, 40
    assert live.window is None and "No scale from" in live.html


def test_recording_leaves_the_random_stream_alone_and_can_be_repeated():
    before = torch.get_rng_state()
    first, second = record_gpt(steps=0), record_gpt(steps=0)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(first.outputs["head"], second.outputs["head"])
