"""What `RankExplorer` shows: the verdict is true, and the picture has every skip and every rank."""

import itertools
import re
from html import unescape
from xml.etree import ElementTree

import pytest

from amp_course.distributed.panel_html import (
    describe,
    name_ranks,
    run_view,
    verdict,
)
from amp_course.distributed.simulation import RankRun, simulate


def made(skipped, scales, distances=None, agreement="nothing"):
    """A run with these skips, and last scales and distances, by rank."""
    skipped = tuple(tuple(map(bool, of_rank)) for of_rank in skipped)
    before = len(skipped[0]) - 1
    return RankRun(
        agreement,
        scales=tuple((1024.0,) * before + (scale,) for scale in scales),
        overflowed=skipped,
        skipped=skipped,
        distances=tuple((0.0,) * before + (each,) for each in distances or [0.0] * len(skipped)),
        norms=(),
    )


TOGETHER = "step 2 together, and keep one scale and equal"


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (made([[0, 0]] * 4, [1024] * 4), "all 4 ranks keep one scale and equal layer norms."),
        (
            made([[0]] * 4, [1] * 4, agreement="gradients all-reduced"),
            "one scale and equal weights.",
        ),
        (
            made([[0, 1, 0]] * 4, [512] * 4, agreement="gradients all-reduced"),
            f"spreads the inf or NaN:** all 4 ranks skip {TOGETHER} weights.",
        ),
        (
            made([[0, 1, 1]] * 2, [512] * 2, agreement="found_inf agreed"),
            "keeps the ranks together:** both ranks skip 2 steps together, and keep",
        ),
        (
            made([[0, 1, 0]] * 4, [512] * 4),
            f"so all 4 ranks skip {TOGETHER} layer norms. **That is luck:** nothing makes them",
        ),
        (
            made([[0, 0], [1, 0], [0, 0], [0, 0]], [1024, 512, 1024, 1024], [0, 0.0312, 0, 0]),
            "In step 1 rank 1 skips and the others step: **from step 2 on their scales differ**, "
            "and with them the units of the gradients that they add up. At the end the scale is "
            "512 on rank 1 and 1,024 on ranks 0, 2 and 3, and the layer norms differ from rank "
            "0's by up to 0.031.",
        ),
        (
            made([[0, 1, 0], [0, 0, 0]], [0.5, 1], [0.0, 250.0]),
            "the scale is 1/2 on rank 0 and 1 on rank 1, and the layer norms differ from rank 0's "
            "by up to 250.",
        ),
        (
            made([[1, 1, 0], [1, 0, 0], [0, 0, 0]], [256, 512, 1024], [0.0, 0.1, 2.0]),
            "At the end the scale ranges from 256 to 1,024, and the layer norms differ",
        ),
        (
            made([[1, 0, 0], [0, 1, 0]], [512, 512], [0.0, 0.2]),
            "the scales happen to be equal again, but the layer norms differ from rank 0's by up",
        ),
        (
            made([[0, 0, 1], [0, 0, 0]], [1024, 1024], [0.0, 0.01]),
            "and rank 1 steps: **their layer norms now differ from rank 0's by up to 0.01**, and",
        ),
    ],
)
def test_the_verdict(run, words):
    assert words in verdict(run)


def test_the_verdict_of_a_real_run_is_true():
    run = simulate(4, "nothing", {4: [1], 7: [0]}, steps=12)
    assert "from step 6 on their scales differ" in verdict(run)
    assert [len({scales[step] for scales in run.scales}) for step in (4, 5)] == [1, 2]
    assert f"by up to {max(each[-1] for each in run.distances):.2g}." in verdict(run)


@pytest.mark.parametrize(
    ("ranks", "name"),
    [
        ([3], "rank 3"),
        ([0, 1], "ranks 0 and 1"),
        ([0, 2, 3, 4], "ranks 0 and 2–4"),
        ([0, 1, 2, 4, 6, 7], "ranks 0–2, 4, 6 and 7"),
        ([0, 1, 2, 3], "ranks 0–3"),
    ],
)
def test_names_of_ranks(ranks, name):
    assert name_ranks(ranks) == name


def parsed(run):
    """The view's picture, as XML: so it is well-formed, too."""
    svg = re.search(r"<svg role.*?</svg>(?=<div>)", run_view(run), flags=re.S)[0]
    return ElementTree.fromstring(svg)


NAMED = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("agreement", ["nothing", "found_inf agreed"])
def test_the_picture_marks_every_skip_and_whose_it_was(agreement):
    run = simulate(8, agreement, {1: [0], 2: [0, 5]}, steps=4)
    tips = [tip.text for tip in parsed(run).iter(f"{NAMED}title")]
    assert tips == [
        f"rank {rank}, step {step + 1}: skipped, as "
        f"{'it' if run.overflowed[rank][step] else 'another rank'} overflowed"
        for rank in range(8)
        for step in range(4)
        if run.skipped[rank][step]
    ]
    assert len(tips) == (3 if agreement == "nothing" else 16)


def test_every_group_has_its_line_and_its_name_within_the_picture():
    run = simulate(8, "nothing", {1: [1], 2: [3], 3: [4], 4: [6]}, steps=6)
    picture = parsed(run)
    width, height = map(float, picture.get("viewBox").split()[2:])
    lines = list(picture.iter(f"{NAMED}polyline"))
    assert len(lines) == 2 * len(run.groups()) == 10
    for each in lines:
        points = [tuple(map(float, point.split(","))) for point in each.get("points").split()]
        assert all(0 <= x <= width and 0 <= y <= height for x, y in points)
    words = [
        (text.text, float(text.get("x")), float(text.get("y")))
        for text in picture.iter(f"{NAMED}text")
    ]
    assert all(0 <= x < width and 10 <= y < height - 4 for _, x, y in words)
    names = {name: y for name, x, y in words if name.startswith("rank") and x > 500}
    assert names.keys() == {"ranks 0, 2, 5 and 7", "rank 1", "rank 3", "rank 4", "rank 6"}
    heights = sorted(y for name, x, y in words if name in names and x > 500)
    assert all(after - before > 12.9 for before, after in itertools.pairwise(heights))


@pytest.mark.parametrize("overflow_at", [{}, {0: [0]}])
def test_a_run_of_one_step_is_drawn_too(overflow_at):
    run = simulate(2, "nothing", overflow_at, steps=1)
    assert parsed(run).get("aria-label") == describe(run)


def test_a_screen_reader_gets_the_numbers():
    run = simulate(4, "nothing", {2: [1]}, steps=10, growth_interval=None)
    view = run_view(run)
    assert '<div role="status" aria-live="polite"' in view
    label = unescape(re.search(r'aria-label="([^"]*)"', view)[1])
    assert label.startswith(
        "10 steps. ranks 0, 2 and 3: scale from 1,024 to 1,024, 0 skipped, distance from rank 0 0; "
        "rank 1"
    )
    assert "**" not in label and "from step 4 on their scales differ" in label
