"""The words and pictures of `HeadroomMap`: bars end where log2 says, every module is there,
and heat has its hatch.
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
from amp_course.debugging.panel_html import (
    HATCHES,
    bar_end,
    describe_step,
    headroom_text,
    headroom_view,
    loss_text,
)
from tests.debugging.runs import dying, living, made_run, reading

NAMED = "{http://www.w3.org/2000/svg}"


def pictures(view: str) -> list[ElementTree.Element]:
    """The bars and the history, as XML: so they are well-formed, too."""
    return [
        ElementTree.fromstring(found)
        for found in re.findall(r"<svg role.*?</svg>", view, flags=re.S)
    ]


def tips(picture: ElementTree.Element) -> dict[str, ElementTree.Element]:
    """What is shown under the mouse, and the box that it belongs to."""
    return {
        tip.text or "": box
        for box in picture.iter(f"{NAMED}rect")
        for tip in box.findall(f"{NAMED}title")
    }


def words(picture: ElementTree.Element) -> list[str]:
    return [text.text or "" for text in picture.iter(f"{NAMED}text")]


def right_end(box: ElementTree.Element) -> float:
    return float(box.get("x", "")) + float(box.get("width", ""))


@pytest.mark.parametrize(("step", "said"), [
    (1, "**Step 1 of 6:** the loss is 2.000, and the optimizer steps. Hottest activation: "
    "`block2`, 10.0 doublings left."),
    (5, "**Step 5 of 6:** the loss is 1,234, and the scaler skips the step. Hottest activation: "
    "`head`, overflows by 0.1 doublings."),
    (6, "**Step 6 of 6:** the loss is NaN, and the scaler skips the step. Hottest activation: "
    "`block2`, inf."),
])  # fmt: skip
def test_the_words_of_a_step(step: int, said: str) -> None:
    assert describe_step(dying(), "activation", step) == said


def test_the_words_after_death_of_lost_values_and_of_nothing() -> None:
    run = made_run([reading(2, "", 1.0, lost=0.62)], [math.inf, 1.0, 1.0])
    assert describe_step(run, "activation", 2).endswith(
        "The run died in step 1. Hottest activation: `the model`, 16.0 doublings left. "
        "Most is lost in `the model`: 62 % of its values."
    )
    assert describe_step(run, "activation", 3).endswith("No activation was measured in this step.")
    assert "died" not in describe_step(run, "activation", 1)


@pytest.mark.parametrize(("largest", "said"), [
    (0.0, "all zeros"), (math.inf, "inf"), (math.nan, "NaN"), (65504.0, "0.0 doublings left"),
    (131008.0, "overflows by 1.0 doublings"), (1.0, "16.0 doublings left"),
])  # fmt: skip
def test_headroom_in_words(largest: float, said: str) -> None:
    assert headroom_text(reading(1, "a", largest)) == said


def test_losses_in_words() -> None:
    assert [loss_text(loss) for loss in (0.25, -1.5, 12345.6, math.inf, -math.inf, math.nan)] == [
        "0.250", "-1.500", "12,346", "inf", "-inf", "NaN",
    ]  # fmt: skip


@pytest.mark.parametrize(("dtype", "smallest", "largest"), [
    (FP16, 2.0**-24, 65504.0), (BF16, 2.0**-133, 3.3895313892515355e38),
])  # fmt: skip
def test_bars_end_where_log2_says(dtype: FloatFormat, smallest: float, largest: float) -> None:
    first, end = bar_end(smallest, dtype), bar_end(largest, dtype)
    doubling = (end - first) / (math.log2(largest) - math.log2(smallest))
    for value in (smallest * 3, 0.001, 1.0, 7.0, largest / 3, largest * 2):
        assert bar_end(value, dtype) == pytest.approx(
            first + doubling * (math.log2(value) - math.log2(smallest))
        )
    nothing, everything = bar_end(0.0, dtype), bar_end(math.inf, dtype)
    assert nothing < first < end < everything == bar_end(math.nan, dtype)
    # A tenth of the range is left on either side.
    assert first - nothing == pytest.approx(everything - end) == pytest.approx((end - first) / 10)


@pytest.mark.parametrize("step", range(1, 7))
def test_every_module_has_its_bar_and_its_words(step: int) -> None:
    run = dying()
    bars, _ = pictures(headroom_view(run, "activation", step))
    shown = tips(bars)
    for one in run.ranges.readings:
        if one.kind == "activation" and one.number == step:
            bar = next(
                box
                for tip, box in shown.items()
                if tip.startswith(f"{one.module}: largest {one.largest:,.4g}")
            )
            assert right_end(bar) == pytest.approx(
                max(161, bar_end(one.largest, FP16) - 1), abs=0.11
            )
            assert one.module in words(bars) and headroom_text(one) in words(bars)
    labels = [word for word in words(bars) if word in ("block1", "block2", "head")]
    assert labels == ["block1", "block2", "head"]  # in the order in which they ran
    assert len(shown) == 4 and "the range of fp16" in shown and "65,504" in words(bars)


def test_the_colours_are_the_maps_and_all_but_fine_are_hatched_too() -> None:
    bars, _ = pictures(headroom_view(dying(), "activation", 5))
    fills = {tip.partition(":")[0]: box.get("fill") for tip, box in tips(bars).items()}
    hot, over = LEVELS[4][1].lstrip("#"), LEVELS[5][1].lstrip("#")
    assert fills["block1"].startswith(f"url(#amp-{hot}-") and fills["block2"].startswith(
        f"url(#amp-{hot}-"
    )  # type: ignore[union-attr]
    assert fills["head"].startswith(f"url(#amp-{over}-")  # type: ignore[union-attr]
    bars, _ = pictures(headroom_view(dying(), "activation", 2))
    assert {tip.partition(":")[0]: box.get("fill") for tip, box in tips(bars).items()}[
        "block2"
    ] == f"url(#amp-{LEVELS[3][1].lstrip('#')}-5)"
    assert len(HATCHES) == len(LEVELS) and len({hatch for hatch in HATCHES if hatch}) == 5


def test_the_history_ends_at_the_chosen_step() -> None:
    run = dying()
    for step in range(1, 7):
        _, history = pictures(headroom_view(run, "activation", step))
        of_block2 = [tip for tip in tips(history) if tip.startswith("block2, ")]
        assert of_block2 == [
            "block2, step 1: fine", "block2, step 2: 4 doublings left",
            f"block2, {'step 3' if step == 3 else f'steps 3–{min(step, 5)}'}: 2 doublings left",
            "block2, step 6: overflows, inf or NaN",
        ][: (1, 2, 3, 3, 3, 4)[step - 1]]  # fmt: skip
        lines = {
            float(line.get("x1", ""))
            for line in history.iter(f"{NAMED}line")
            if line.get("stroke-width") == "1.2"
        }
        width = 580 / 6
        assert sorted(lines) == pytest.approx(
            [160 + width * (step - 1), 160 + width * step], abs=0.06
        )
        assert f"step {step}" in words(history)


def test_the_history_has_skipped_steps_and_losses_that_are_not_finite() -> None:
    for step, skipped in ((4, 0), (5, 1), (6, 2)):
        _, history = pictures(headroom_view(dying(), "activation", step))
        assert sum(tip.endswith(": skipped") for tip in tips(history)) == skipped
        assert ("step 6: the loss is NaN" in tips(history)) is (step == 6)
        assert f"Skipped: {skipped}." in history.get("aria-label", "")
        (loss,) = history.iter(f"{NAMED}polyline")
        assert len(loss.get("points", "").split()) == min(step, 5)


@pytest.mark.parametrize(
    "losses", [[2.0, 1.0, 0.5], [2.0, -1.0, 0.5], [1.0, 1.0, 1.0], [math.nan, 1.0, math.inf]]
)
def test_lower_losses_are_drawn_lower(losses: list[float]) -> None:
    _, history = pictures(headroom_view(made_run([reading(1, "a", 1.0)], losses), "activation", 3))
    heights = [
        float(point.split(",")[1])
        for line in history.iter(f"{NAMED}polyline")
        for point in line.get("points", "").split()
    ]
    finite = [loss for loss in losses if math.isfinite(loss)]
    assert len(heights) == len(finite) and all(24 <= y <= 68 for y in heights)
    for (before, y), (after, z) in itertools.combinations(zip(finite, heights, strict=True), 2):
        assert (before > after) is (y < z)


def test_steps_between_two_measurements_share_the_level_of_the_first() -> None:
    run = made_run(
        [reading(1, "a", 2.0), reading(4, "a", 2.0), reading(7, "a", math.inf)], [1.0] * 8, every=3
    )
    _, history = pictures(headroom_view(run, "activation", 8))
    assert [tip for tip in tips(history) if tip.startswith("a,")] == [
        "a, steps 1–6: fine",
        "a, steps 7–8: overflows, inf or NaN",
    ]


def test_a_module_that_ran_twice_shows_its_hottest() -> None:
    run = made_run(
        [reading(1, "a", 60_000.0), reading(1, "a", 2.0), reading(2, "b", 1.0)], [1.0, 1.0]
    )
    bars, history = pictures(headroom_view(run, "activation", 1))
    assert "0.1 doublings left" in words(bars) and "not measured" in words(bars)
    assert "a, step 1: 2 doublings left" in tips(history)


def test_a_screen_reader_is_told_the_numbers() -> None:
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


def test_a_run_that_lives_is_fine_throughout() -> None:
    view = headroom_view(living(), "activation", 4)
    assert (
        "nothing lost or near overflow" in view
        and "a, steps 1–4: fine" in view
        and "died" not in view
    )


def test_names_are_text_and_long_ones_keep_their_end() -> None:
    wicked = "<script>alert('&')</script>" + ".layers" * 5 + ".mlp"
    view = headroom_view(made_run([reading(1, wicked, 1.0)], [1.0]), "activation", 1)
    assert "<script" not in view
    bars, history = pictures(view)
    assert f"…{wicked[-23:]}" in words(bars) and f"…{wicked[-23:]}" in words(history)
    assert any(wicked in tip for tip in tips(bars))


def test_text_takes_the_colours_of_the_readers_theme() -> None:
    view = headroom_view(dying(), "activation", 6)
    fills = {
        text.get("fill", "") for picture in pictures(view) for text in picture.iter(f"{NAMED}text")
    }
    assert fills and all(fill.startswith("var(--jp-") for fill in fills)


@pytest.mark.parametrize("steps", [1, 12, 60, 61, 400, 1201])
def test_ticks_are_few_and_round(steps: int) -> None:
    _, history = pictures(
        headroom_view(made_run([reading(1, "a", 1.0)], [1.0] * steps), "activation", 1)
    )
    ticks = [int(word.replace(",", "")) for word in words(history) if word[0].isdigit()]
    assert ticks[0] == 1 and ticks == sorted(set(ticks)) and len(ticks) <= 13
    assert all(tick % 5 == 0 for tick in ticks[1:])
