"""The words and pictures of `HeadroomMap`: bars end where log2 says, every module has one, and heat
has its hatch.
"""

from __future__ import annotations

import itertools
import math
import re
from html import unescape
from xml.etree import ElementTree

import pytest

from amp_course.bits import BF16, FP16, FloatFormat
from amp_course.debugging.headroom import LEVELS
from amp_course.debugging.panel_html import bar_end, headroom_text, headroom_view
from tests.debugging.runs import dying, made_run, reading

NAMED = "{http://www.w3.org/2000/svg}"


def pictures(view: str) -> list[ElementTree.Element]:
    """The bars and the history, parsed as XML, which fails if they are not well-formed."""
    return [
        ElementTree.fromstring(found)
        for found in re.findall(r"<svg role.*?</svg>", view, flags=re.S)
    ]


def tips(picture: ElementTree.Element) -> dict[str, ElementTree.Element]:
    """Tooltips, each with its box."""
    return {
        tip.text or "": box
        for box in picture.iter(f"{NAMED}rect")
        for tip in box.findall(f"{NAMED}title")
    }


def words(picture: ElementTree.Element) -> list[str]:
    return [text.text or "" for text in picture.iter(f"{NAMED}text")]


STEPS = {
    1: "Step 1 of 6:</b> the loss is 2.000, and the optimizer steps. Hottest activation: "
    "<code>block2</code>, 10.0 doublings left.<",
    5: "Step 5 of 6:</b> the loss is 1,234, and the scaler skips the step. Hottest activation: "
    "<code>head</code>, overflows by 0.1 doublings.<",
    6: "Step 6 of 6:</b> the loss is NaN, and the scaler skips the step. Hottest activation: "
    "<code>block2</code>, inf.<",
}


@pytest.mark.parametrize("step", STEPS)
def test_the_words_of_a_step(step: int) -> None:
    assert STEPS[step] in headroom_view(dying(), "activation", step)


def test_the_words_after_death_and_of_lost_values() -> None:
    run = made_run([reading(2, "", 1.0, lost=0.62)], [math.inf, 1.0])
    assert (
        "The run died in step 1. Hottest activation: <code>the model</code>, 16.0 doublings left. "
        "Most is lost in <code>the model</code>: 62 % of its values."
    ) in headroom_view(run, "activation", 2)
    assert "died" not in headroom_view(run, "activation", 1)


HEADROOMS = [
    (0.0, "all zeros"),
    (math.inf, "inf"),
    (math.nan, "NaN"),
    (65504.0, "0.0 doublings left"),
    (131008.0, "overflows by 1.0 doublings"),
    (1.0, "16.0 doublings left"),
]


@pytest.mark.parametrize(("largest", "text"), HEADROOMS)
def test_headroom_in_words(largest: float, text: str) -> None:
    assert headroom_text(reading(1, "a", largest)) == text


@pytest.mark.parametrize(
    ("dtype", "smallest", "largest"),
    [(FP16, 2.0**-24, 65504.0), (BF16, 2.0**-133, 3.3895313892515355e38)],
)
def test_bars_end_where_log2_says(dtype: FloatFormat, smallest: float, largest: float) -> None:
    first, end = bar_end(smallest, dtype), bar_end(largest, dtype)
    doubling = (end - first) / (math.log2(largest) - math.log2(smallest))
    for value in (smallest * 3, 0.001, 1.0, 7.0, largest / 3, largest * 2):
        assert bar_end(value, dtype) == pytest.approx(
            first + doubling * (math.log2(value) - math.log2(smallest))
        )
    nothing, everything = bar_end(0.0, dtype), bar_end(math.inf, dtype)
    assert nothing < first < end < everything == bar_end(math.nan, dtype)
    # There is a tenth of the range more on either side.
    assert first - nothing == pytest.approx(everything - end) == pytest.approx((end - first) / 10)


def test_every_module_has_its_bar_and_its_words() -> None:
    run = dying()
    for step in range(1, 7):
        bars, _ = pictures(headroom_view(run, "activation", step))
        shown = tips(bars)
        for one in run.ranges.readings:
            if one.kind == "activation" and one.number == step:
                start = f"{one.module}: largest {one.largest:,.4g}"
                (bar,) = (box for tip, box in shown.items() if tip.startswith(start))
                end = float(bar.get("x", "")) + float(bar.get("width", ""))
                assert end == pytest.approx(max(161, bar_end(one.largest, FP16) - 1), abs=0.11)
                assert headroom_text(one) in words(bars)
        labels = [word for word in words(bars) if word in ("block1", "block2", "head")]
        assert labels == ["block1", "block2", "head"]  # in the order in which they ran
        assert len(shown) == 4 and "the range of fp16" in shown and "65,504" in words(bars)


def test_bars_have_the_colours_of_their_levels_and_hatches_where_not_fine() -> None:
    def fill(step: int, module: str) -> str:
        bars, _ = pictures(headroom_view(dying(), "activation", step))
        return next(box.get("fill", "") for tip, box in tips(bars).items() if module in tip)

    for step, module, level in ((5, "block2", 4), (5, "head", 5), (2, "block2", 3)):
        assert fill(step, module).startswith(f"url(#amp-{LEVELS[level].colour.lstrip('#')}-")
    assert fill(2, "block1") == LEVELS[2].colour
    assert len({level.hatch for level in LEVELS if level.hatch}) == 5


@pytest.mark.parametrize("step", [1, 3, 6])
def test_the_history_ends_at_the_chosen_step(step: int) -> None:
    _, history = pictures(headroom_view(dying(), "activation", step))
    levels = [
        "step 1: fine",
        "step 2: 4 doublings left",
        f"{'step 3' if step == 3 else 'steps 3–5'}: 2 doublings left",
        "step 6: overflows, inf or NaN",
    ]
    found = [tip.removeprefix("block2, ") for tip in tips(history) if tip.startswith("block2, ")]
    assert found == levels[: {1: 1, 3: 3, 6: 4}[step]]
    marks = {
        float(line.get("x1", ""))
        for line in history.iter(f"{NAMED}line")
        if line.get("stroke-width") == "1.2"
    }
    assert sorted(marks) == pytest.approx([160 + 580 / 6 * at for at in (step - 1, step)], abs=0.06)
    assert f"step {step}" in words(history)


@pytest.mark.parametrize(("step", "skipped"), [(4, 0), (5, 1), (6, 2)])
def test_the_history_has_skipped_steps_and_losses_that_are_not_finite(
    step: int, skipped: int
) -> None:
    _, history = pictures(headroom_view(dying(), "activation", step))
    assert sum(tip.endswith(": skipped") for tip in tips(history)) == skipped
    assert ("step 6: the loss is NaN" in tips(history)) is (step == 6)
    assert f"Skipped: {skipped}." in history.get("aria-label", "")


@pytest.mark.parametrize("losses", [[2.0, 1.0, 0.5], [1.0, 1.0, 1.0], [math.nan, 1.0, math.inf]])
def test_lower_losses_are_drawn_lower(losses: list[float]) -> None:
    _, history = pictures(headroom_view(made_run([reading(3, "a", 1.0)], losses), "activation", 3))
    heights = [
        float(point.split(",")[1])
        for line in history.iter(f"{NAMED}polyline")
        for point in line.get("points", "").split()
    ]
    finite = [loss for loss in losses if math.isfinite(loss)]
    assert len(heights) == len(finite) and all(24 <= y <= 68 for y in heights)
    for (before, y), (after, z) in itertools.combinations(zip(finite, heights, strict=True), 2):
        assert (before > after) is (y < z)


def test_the_numbers_are_there_for_screen_readers() -> None:
    view = headroom_view(dying(), "activation", 5)
    assert '<div role="status" aria-live="polite"' in view
    bars, history = (unescape(label) for label in re.findall(r'aria-label="([^"]*)"', view))
    assert bars == (
        "Step 5, largest activation by module, for fp16: block1 0.4 doublings left; block2 0.0 "
        "doublings left; head overflows by 0.1 doublings."
    )
    assert history == (
        "Steps 1 to 5, activation by module: overflows, inf or NaN first in step 5, head, 2 "
        "doublings left first in step 3, block2. Skipped: 1."
    )


def test_long_names_keep_their_end_and_all_text_takes_the_colours_of_the_theme() -> None:
    name = "model" + ".layers" * 5 + ".mlp"
    bars, history = pictures(
        headroom_view(made_run([reading(1, name, 1.0)], [1.0]), "activation", 1)
    )
    assert f"…{name[-23:]}" in words(bars) and f"…{name[-23:]}" in words(history)
    assert any(name in tip for tip in tips(bars))
    fills = {text.get("fill", "") for one in (bars, history) for text in one.iter(f"{NAMED}text")}
    assert fills and all(fill.startswith("var(--jp-") for fill in fills)


@pytest.mark.parametrize("steps", [1, 12, 60, 61])
def test_ticks_are_few_and_round(steps: int) -> None:
    _, history = pictures(
        headroom_view(made_run([reading(1, "a", 1.0)], [1.0] * steps), "activation", 1)
    )
    ticks = [int(word) for word in words(history) if word[0].isdigit()]
    assert ticks[0] == 1 and ticks == sorted(set(ticks)) and len(ticks) <= 13
    assert all(tick % 5 == 0 for tick in ticks[1:])
