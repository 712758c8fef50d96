"""`RooflineExplorer` without a browser: its numbers are the roofline's,
it measures only what it may, and it never throws.
"""

import random
import re
from functools import partial

import pytest
import torch

from amp_course.kit.measure import seconds_text
from amp_course.kit.panel_page import page_of
from amp_course.speed import panel as module
from amp_course.speed.cards import CARDS, find_card
from amp_course.speed.machine import Machine, Rate
from amp_course.speed.one_op import KINDS, Predicted, count_op
from amp_course.speed.panel import RooflineExplorer
from amp_course.speed.panel_html import verdict
from tests.speed.test_op_counts import recorded

HERE = "this machine (cpu)"
RATES = (Rate("fp32", 512, 2e11), Rate("bf16", 512, 1e12), Rate("fp16", 512, 2e10))
MACHINE = Machine("cpu", RATES, bandwidth=1.5e10, launch_seconds=2e-6)


@pytest.fixture(scope="module")
def made():
    return RooflineExplorer(MACHINE)


@pytest.fixture
def panel(made):
    made.machine.value, made.kind.value, made.arrives.value = HERE, "linear", True
    made.dtype.value, made.m.value, made.n.value, made.k.value = "bf16", 512, 1024, 1024
    made.react(None)  # a panel that was measured forgets it
    return made


def text_of(panel):
    return re.sub(r"<[^>]+>", "", re.sub(r"<(svg|table).*?</\1>", "", panel.html, flags=re.S))


def test_times_are_the_rooflines(panel):
    fp32, amp = panel.sides
    matmul, casts = 2 * 512 * 1024 * 1024, 6 * 1024 * 1024 + 6 * 1024
    assert fp32.seconds == pytest.approx(matmul / 2e11)
    assert amp.seconds == pytest.approx(
        matmul / 1e12 + casts / 1.5e10, rel=0.01
    )  # the bias's cast is a launch
    assert f"Predicted: {seconds_text(amp.seconds)}" in text_of(panel)
    assert (
        f"{fp32.seconds / amp.seconds:.1f} times as fast as fp32 ({seconds_text(fp32.seconds)})"
        in text_of(panel)
    )
    assert "Its 2 casts take 28 % of that" in text_of(panel)
    assert seconds_text(fp32.seconds) in panel.html and "AMP bf16" in panel.html


def test_every_op_on_every_machine_in_every_dtype(panel):
    for machine in (HERE, "V100 SXM2", "H100 SXM"):
        panel.machine.value = machine
        for kind in KINDS:
            panel.kind.value = kind
            for dtype in panel.dtype.options:
                panel.dtype.value = dtype
                words = "there is nothing to run" if (kind, dtype) == ("cast", "fp32") else "-bound"
                assert words in panel.html
                assert [side.fmt for side in panel.sides] == list(dict.fromkeys(["fp32", dtype]))


@pytest.mark.parametrize(
    ("m", "n", "k", "bound"),
    [(4096, 4096, 4096, "compute"), (1, 4096, 4096, "memory"), (1, 1, 1, "launch")],
)
def test_each_bound_is_named(panel, m, n, k, bound):
    panel.m.value, panel.n.value, panel.k.value = m, n, k
    assert panel.sides[1].bound == bound and f"<b>{bound}-bound</b>" in panel.html


def test_the_measured_machine_comes_first_and_the_cards_follow(panel):
    assert panel.machine.options == [HERE, *(card.name for card in CARDS)]
    panel.machine.value = "A100 SXM 40 GB"
    assert panel.roofline == find_card("A100 SXM 40 GB").roofline()
    assert panel.measure.disabled
    panel.measure.click()
    assert panel.sides[0].measured is None


def test_a_format_that_a_card_lacks_leaves_the_menu_and_is_said(panel):
    panel.machine.value = "V100 SXM2"
    assert panel.dtype.options == ["fp32", "fp16"] and panel.dtype.value == "fp16"
    assert "V100 SXM2 has no fast units for bf16" in panel.message
    panel.dtype.value = "fp32"
    panel.machine.value = "H100 SXM"
    assert panel.dtype.value == "fp32" and "no fast units" not in panel.message


def test_a_machine_without_a_16_bit_format():
    rates = (RATES[0], Rate("bf16", 8, None, "unsupported"))
    panel = RooflineExplorer(Machine("cpu", rates, 1e10, 1e-6))
    assert panel.dtype.options == ["fp32"] and len(panel.sides) == 1
    assert f"{HERE} has no measured rate for bf16 or fp16" in panel.message
    assert "Choose a 16-bit dtype" in panel.html


def test_what_the_sizes_mean_follows_the_op(panel):
    panel.kind.value = "relu"
    assert "M rows of N numbers" in panel.message and panel.k.disabled
    panel.kind.value = "attention"
    assert "M queries, N keys, heads of size K" in panel.message and not panel.k.disabled


def test_an_input_that_arrives_in_fp32_costs_a_cast_more(panel):
    kernels = len(panel.sides[1].calls)
    panel.arrives.value = False
    assert len(panel.sides[1].calls) == kernels + 1
    panel.dtype.value = "fp32"
    assert panel.arrives.disabled
    panel.kind.value, panel.dtype.value = "cast", "bf16"
    assert panel.arrives.disabled


def test_measuring_runs_the_op_and_puts_it_next_to_the_prediction(panel, monkeypatch):
    monkeypatch.setattr(module, "time_op", partial(module.time_op, seconds=0.0))
    panel.m.value, panel.n.value, panel.k.value = 8, 16, 32
    panel.measure.click()
    assert all(side.measured > 0 for side in panel.sides)
    assert f"Measured: {seconds_text(panel.sides[1].measured)}" in text_of(panel)
    assert "features in" in panel.message
    panel.m.value = 16
    assert all(side.measured is None for side in panel.sides) and "Measured" not in text_of(panel)


def test_what_is_too_large_is_refused_and_said(panel, monkeypatch):
    # which says nothing about what was not timed
    monkeypatch.setattr(module, "busy_text", lambda share: "too busy")
    # 48 GiB or, where there is more, 47 minutes
    panel.m.value = panel.n.value = panel.k.value = 65536
    panel.measure.click()
    for side in ("fp32", "AMP bf16"):
        assert f"<b>{side} was not measured:</b>" in panel.message
    assert "Choose smaller sizes." in panel.message
    assert all(side.measured is None for side in panel.sides)


def test_one_side_can_be_measured_without_the_other(panel, monkeypatch):
    monkeypatch.setattr(module, "busy_text", lambda share: "")

    def time_op(kind, on, roofline, device):
        if on.dtype == torch.bfloat16:
            raise RuntimeError("no kernel for <bf16>\nand a stack")
        return 0.5

    monkeypatch.setattr(module, "time_op", time_op)
    panel.measure.click()
    assert [side.measured for side in panel.sides] == [0.5, None]
    assert "no kernel for &lt;bf16&gt;." in panel.message and "stack" not in panel.message


def side(name="AMP bf16", seconds=1.0, measured=None, kind="linear", casts=0.0):
    calls = count_op(kind, module.Setting(8, 8, 8))
    by = {"launch": 0.0, "memory": 0.0, "compute": seconds}
    return Predicted(name, name.split()[-1], calls, seconds, by, casts, measured)


@pytest.mark.parametrize(
    ("fp32", "amp", "words"),
    [
        (8.0, 1.0, "8.0 times as fast</b> as fp32"),
        (1.0, 1.3, "1.30 times as long</b> as fp32"),
        (1.0, 250.0, "250 times as long</b> as fp32"),
        (1.0, 1.005, "about the same as fp32"),
    ],
)
def test_the_comparison_in_words(fp32, amp, words):
    assert words in verdict(MACHINE.roofline(), [side("fp32", fp32), side(seconds=amp)])


@pytest.mark.parametrize(
    ("bound", "measured", "words"),
    [
        ("compute", 1.1, "The prediction is close"),
        ("compute", 3.0, "3.0 times the prediction"),
        ("compute", 0.5, "faster than the square matmuls"),
        ("memory", 0.5, "in a cache"),
    ],
)
def test_what_was_measured_in_words(bound, measured, words):
    measured_op = Predicted(
        "fp32", "fp32", count_op("relu", module.Setting(8, 8, 8)), 1.0, {bound: 1.0}, 0.0, measured
    )
    assert words in verdict(MACHINE.roofline(), [measured_op])


def test_takes_a_machine_or_measures_one(monkeypatch):
    monkeypatch.setattr(module, "measure_machine", lambda device, *, sizes, seconds: MACHINE)
    assert RooflineExplorer().machine.options[0] == HERE
    with pytest.raises(TypeError, match=r"is a Roofline: pass what measure_machine\(\) returns"):
        RooflineExplorer(MACHINE.roofline())


def test_a_screen_reader_hears_where_the_op_lands(panel):
    words = re.search(r'<svg role="img" aria-label="([^"]*)"', panel.html)[1]
    assert words.startswith("Roofline of this machine (cpu): bf16: 1.00 TFLOP/s")
    assert "AMP bf16: 102 FLOPs per byte, compute-bound, predicted 1.50 ms" in words
    panel.kind.value, panel.dtype.value = "cast", "fp32"
    assert "fp32: nothing to do" in panel.html


def test_the_panel_shows_that_it_measures(panel, monkeypatch):
    shown = []
    monkeypatch.setattr(panel, "fronts", [lambda: shown.append(panel.message)])
    monkeypatch.setattr(module, "time_op", lambda *_: 0.5)
    panel.measure.click()
    assert shown[0] == "Measuring …" and shown[-1] != shown[0]


def disabled(panel):
    return [control.disabled for control in panel.controls()[:-1]]


def test_in_the_book_it_shows_what_it_shows_here(panel):
    """torch counts for the one here, and the record of a few sizes for the other."""
    book = RooflineExplorer.of(recorded())
    panel.machine.value = book.machine.value
    draw, choices = random.Random(0), ("kind", "dtype", "arrives", "m", "n", "k", "machine")
    shown = {book.html}
    for _ in range(80):
        name = draw.choice(choices)
        value = draw.choice(getattr(book, name).options)
        for one in (book, panel):
            getattr(one, name).value = value
        assert (book.html, book.message) == (panel.html, panel.message)
        assert disabled(book) == disabled(panel)
        shown.add(book.html)
    assert len(shown) > 40


def test_in_the_book_there_is_no_machine_to_measure():
    book = RooflineExplorer.of(recorded())
    assert book.machine.options == [card.name for card in CARDS]
    assert book.measure not in book.controls() and "measures your own machine" in page_of(book)
    book.measure.click()
    assert "Measured" not in book.html
