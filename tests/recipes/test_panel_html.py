"""What `RecipeExplorer` draws: bars to scale, sentences,
and nothing that a label could smuggle in.
"""

import re
from dataclasses import replace

import pytest

from amp_course.recipes.measuring import Measured, UpdateReach
from amp_course.recipes.panel_html import recipe_view, size_text, verdict

FP32 = Measured(
    name="o0",
    label="O0",
    parameters=100,
    weights={"fp32": 400},
    master={},
    gradients={"fp32": 400},
    optimizer_state={"fp32": 800},
    batch_norm={},
    activations={"fp32": 2048},
    cast_copies=0,
    at_step=1600,
    scaling="none",
    skipped=0,
)
HALF = replace(
    FP32,
    name="o2",
    label="O<2>",
    weights={"fp16": 160, "fp32": 80},
    master={"fp32": 320},
    gradients={"fp16": 240},
    batch_norm={"fp32": 64},
    activations={"fp16": 1024},
    at_step=2000,
    scaling="dynamic, 65,536",
)
ALL_OF_IT = UpdateReach(1.0, None, 0.0, 0)
SOME = UpdateReach(0.25, 1.0, 0.0, 0)


def view(row=HALF, reached=SOME, size=10**9):
    return recipe_view((row, reached), (FP32, ALL_OF_IT), size, "Adam")


def test_bars_are_as_long_as_the_bytes():
    bars = re.findall(
        r'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)"[^>]*><title>(.*?)</title>', view()
    )
    widths = {(y, title.split(":")[0]): float(width) + 1.5 for _, y, width, title in bars}
    top, below = sorted({y for y, _ in widths}, key=float)
    unit = widths[below, "weights"] / 4
    want = {"weights": 2.4, "master weights": 3.2, "gradients": 2.4, "optimizer state": 8}
    assert {
        title: width / unit for (y, title), width in widths.items() if y == top
    } == pytest.approx(want, rel=0.01)
    assert 16 * unit == pytest.approx(514, rel=0.01)  # the longest takes all the room
    assert widths[below, "optimizer state"] / unit == pytest.approx(8, rel=0.01)
    assert "weights: fp16 + fp32, 2.40 bytes for each parameter" in view()
    assert "bytes for each parameter: O&lt;2&gt; 16.0 (weights " in view()
    assert "; fp32 16.0 (weights " in view()
    alone = view(FP32, ALL_OF_IT)  # fp32 next to itself
    assert alone.count("weights: fp32, 4.00 bytes") == 1


def test_the_sentences():
    said = verdict((HALF, SOME), (FP32, ALL_OF_IT), 10**9, "Adam")
    words = "<b>16.0 bytes</b> for each parameter, fp32 16.0: 14.9 GiB for 1 billion parameters"
    assert words in said
    words = "changed <b>25.0 %</b> of the weights and 100.0 % of their masters (fp32: 100.0 %)."
    assert said.endswith(words)
    broken = verdict((HALF, UpdateReach(0.5, None, 0.125, 0)), (FP32, ALL_OF_IT), 10**9, "Adam")
    assert "✗ The first step left <b>12.5 % of the weights inf or NaN</b>" in broken


def test_the_table_holds_what_was_measured_and_the_products():
    text = re.sub(r"<[^>]+>", "|", view(size=7 * 10**9))
    for value in ("dynamic, 65,536", "1.00 KiB", "2.00 KiB", "64 B", "20.0", "104 GiB", "25.0 %"):
        assert value in text


def test_sizes_for_people():
    assert [size_text(n) for n in (10**8, 7 * 10**9)] == ["100 million", "7 billion"]
