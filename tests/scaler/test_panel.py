"""`ScaleExplorer` without a browser: its shares are those of rounding, its window is right,
and it never throws.
"""

import base64
import re

import pytest
import torch
from torch import nn

from amp_course.bits.formats import BF16, FP8_E4M3, FP16
from amp_course.scaler.panel import ScaleExplorer
from amp_course.scaler.panel_html import verdict
from amp_course.scaler.recording import record_gpt
from amp_course.scaler.window import Gradients, Window
from amp_course.underflow import GradientRecorder, zone_fractions
from amp_course.underflow.panel_html import percent


@pytest.fixture(scope="module")
def recorded():
    return record_gpt(steps=2)


@pytest.fixture(scope="module")
def made(recorded):
    return ScaleExplorer(recorded)


@pytest.fixture
def panel(made):
    made.kind.value, made.layer.value, made.format.value, made.exponent.value = (
        "outputs",
        "all layers",
        FP16,
        0,
    )
    return made


def shown(panel):
    text = re.sub(r"<svg.*?</svg>", "", panel.view.value, flags=re.S)
    return dict(re.findall(r"(lost|subnormal|normal|overflow) <b>(.*?)</b>", text))


@pytest.mark.parametrize("exponent", [-10, 0, 16, 33])
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
    assert panel.window == Gradients(recorded.outputs["blocks.1.qkv"]).window(FP8_E4M3)


def test_every_layer_of_both_kinds_can_be_seen(panel):
    for kind in ("outputs", "weights"):
        panel.kind.value = kind
        for layer in panel.layer.options:
            panel.layer.value = layer
            assert not panel.message.value
            assert "useful" in panel.view.value


def test_a_layer_is_kept_where_the_other_kind_has_it(panel):
    panel.layer.value = "head"
    panel.kind.value = "weights"
    assert panel.layer.value == "head"
    assert panel.layer.options[0] == "all layers" and "blocks.0.qkv" in panel.layer.options


def test_the_sentence_names_the_scale_and_its_use(panel):
    low, high = panel.window.lowest, panel.window.highest
    for exponent, words in (
        (low - 1, "too small"),
        (low, "useful"),
        (high, "useful"),
        (high + 1, "too large"),
    ):
        panel.exponent.value = exponent
        assert f"is <b>{words}</b>" in panel.view.value
        assert f"{2**exponent:,}" in panel.view.value
    panel.format.value = BF16
    assert "is <b>useful</b>: 0.0 % of the gradients are lost" in panel.view.value


def test_a_sentence_for_a_scale_below_one_and_for_no_window():
    shares = {"lost": 0.5, "subnormal": 0.0, "normal": 0.5, "overflow": 0.0}
    assert "2⁻³ = 1/8 is <b>too small</b>: 50.0 % of the gradients become 0" in verdict(
        shares, -3, Window(0, 4)
    )
    assert verdict({**shares, "overflow": 0.1}, 3, None).endswith(
        "No scale from 2⁻¹⁰ to 2⁴⁰ is useful."
    )


def test_takes_the_readers_own_recording_and_says_what_is_none():
    model = nn.Linear(4, 2)
    with GradientRecorder(model) as recorder:
        model(torch.ones(3, 4)).sum().backward()
    panel = ScaleExplorer(recorder)
    assert panel.layer.options == ("all layers", "(model)")
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
    panel = ScaleExplorer(recorder)
    panel._recorded["outputs"] = {**recorder.outputs, "dead": torch.zeros(3)}
    panel.layer.options = [*panel.layer.options, "dead"]
    before = panel.view.value
    panel.layer.value = "dead"
    assert (
        "All gradients of dead are 0 or NaN" in panel.message.value and panel.view.value == before
    )
    panel.layer.value = "all layers"
    assert not panel.message.value


def test_a_page_without_a_kernel_gets_a_picture(panel):
    bundle, metadata = panel._repr_mimebundle_()
    assert base64.b64decode(bundle["image/png"]).startswith(b"\x89PNG")
    assert re.match(
        r"Gradients by size in fp16 at a loss scale of 2\^\d+: .* are useful\.",
        metadata["image/png"]["alt"],
    )
    assert bundle["text/plain"] == "ScaleExplorer()"
    panel.format.value, panel.exponent.value = FP8_E4M3, 40
    assert panel.window is None and panel.still()


def test_controls_have_names_and_explanations(panel):
    for control in (panel.exponent, panel.format, panel.kind, panel.layer):
        assert control.description and control.tooltip


def test_recording_leaves_the_random_stream_alone_and_can_be_repeated():
    before = torch.get_rng_state()
    first, second = record_gpt(steps=0), record_gpt(steps=0)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(first.outputs["head"], second.outputs["head"])
    with pytest.raises(ValueError, match="steps is -1: train for 0 steps or more"):
        record_gpt(steps=-1)
