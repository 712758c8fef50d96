"""The recommendation of `amp-course bench`, for machines that are not here."""

import json
import re
from dataclasses import replace

import pytest

from amp_course.speed.bench.advice import recommend
from amp_course.speed.bench.figures import bench_figure
from amp_course.speed.bench.page import SIDES, LeftOut, Page
from amp_course.speed.bench.text import page_text
from tests.speed.bench_pages import GPU, MIXED, NAMES, page, result, three

SLOW = [
    LeftOut(title, recipe, "left out: one step takes 1.1 s, 40 times as long as in fp32", 40.0)
    for recipe in ("amp_bf16", "amp_fp16")
    for title in NAMES.values()
]
LAPTOP = page(left_out=SLOW, bf16=0.01, fp16=0.004)
T4 = page([*three([0.6] * 3), *three([2.2, 1.2, 1.6], "amp_fp16")], bf16=0.5, fp16=5.0)


def sentences_of(found):
    return "\n".join([recommend(found).headline, *recommend(found).reasons])


NET_32 = [LeftOut("SimpleNet", "amp_bf16", "left out: not enough memory")]
WITH_TF32 = replace(GPU, results=(*GPU.results, *three([1.5, 1.2, 1.4], "tf32")))
TF32_ALONE = page([*three([1.0] * 3), *three([1.5] * 3, "tf32")], bf16=2.0, fp16=2.0)
TINY_NETS = page(three([0.7, 0.8, 1.05], ops=3000), launch=5e-6, bf16=8.0, fp16=8.0)


@pytest.mark.parametrize(
    ("found", "headline", "reasons"),
    [
        (GPU, "Train in AMP bf16: it made these three trainings 1.3 to 2.4 times as fast as", []),
        (
            LAPTOP,
            "Stay in fp32 on this machine: 16-bit matmuls are slower here.",
            [
                "The steps take 40 times as long under AMP.",
                "bf16 matmuls take 100 times as long",
                "fp16 matmuls take 250 times",
            ],
        ),
        (
            MIXED,
            "Train in AMP bf16 where it pays, and time your own model first: it made SimpleNet "
            "1.9 times and Character GPT 1.4 times as fast as fp32, and did not help ResNet on "
            "digits (0.8 times)",
            ["ResNet on digits lost most to casts to 16 bits and back: 5.00 ms of an AMP step of"],
        ),
        (
            T4,
            "Train in AMP fp16, with a GradScaler: it made",
            ["bf16 matmuls take 2.0 times as long", "without one, small gradients underflow"],
        ),
        (
            TINY_NETS,
            "Stay in fp32 for trainings like these three: AMP gained nothing.",
            ["SimpleNet is too small for this machine: starting its 3000 ops takes 75%"],
        ),
        (page(three([1.15] * 3, noise=0.2), bf16=4.0, fp16=0.1), "Stay in fp32", []),
        (WITH_TF32, "Train", ["TF32 alone, without autocast: 1.2 to 1.5 times as fast"]),
        (TF32_ALONE, "Stay in fp32, with TF32 turned on, for", []),
        (
            page(three([1.5] * 3, gap={"memory": 2e-3}), bf16=4.0, fp16=0.1),
            "Train in AMP bf16",
            ["takes 15% of", "MALLOC_TRIM_THRESHOLD_="],
        ),
        (
            page(left_out=NET_32, bf16=2.0),
            "No recommendation: no training could be compared with fp32.",
            [],
        ),
        (page(complete=False), "No recommendation: the run was interrupted too early.", []),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)
def test_a_recipe_is_recommended_with_its_reasons(found, headline, reasons):
    assert recommend(found).headline.startswith(headline)
    assert all(reason in sentences_of(found) for reason in reasons)
    assert ("GradScaler" in sentences_of(found)) == (
        found is T4
    ) and "SimpleNet lost" not in sentences_of(found)


@pytest.mark.parametrize("found", [LAPTOP, MIXED], ids=["laptop", "mixed"])
def test_on_a_busy_machine_nothing_is_claimed(found):
    quiet, busy = (replace(found, settings={"plan": "full", "waited": one}) for one in (0.19, 0.4))
    assert recommend(quiet) == recommend(found)
    assert recommend(busy).headline == "No recommendation: this machine was too busy to tell."
    assert not re.search(r"times as|fp32|matmuls|Train in", sentences_of(busy))
    head, _, rest = page_text(busy).partition("Matmul rate")
    assert "Speed-up" not in rest and "as long as in fp32" not in rest
    assert "waited for a CPU 40% of the time" in " ".join(head.split())
    picture = bench_figure(busy, recommend(busy))
    assert "No recommendation" in picture._suptitle.get_text()
    assert not any("Speed-up" in axis.get_title(loc="left") for axis in picture.axes)


def test_fp16_has_to_be_clearly_faster_to_go_before_bf16():
    def best(fp16):
        both = [*three([2.0] * 3), *three([fp16] * 3, "amp_fp16")]
        return recommend(page(both, bf16=4.0, fp16=4.0)).headline[:17]

    assert (best(2.05), best(2.2)) == ("Train in AMP bf16", "Train in AMP fp16")


def test_uneven_times_bring_a_warning_or_no_recommendation():
    def busy(found, ratio):
        times = [{side: ratio * one.seconds[side] for side in SIDES} for one in found.results]
        return replace(found, results=tuple(map(with_median, found.results, times)))

    def with_median(one, times):
        return replace(one, median=times)

    uneven = sentences_of(busy(GPU, 2))
    assert "took 2.0 times as long as the fastest" in uneven and "Train in AMP bf16" in uneven
    assert sentences_of(busy(GPU, 4)).startswith(
        "No recommendation: the times of this run are too uneven.\nSomething else was using"
    )
    hopeless = page(three([0.1] * 3), bf16=0.01, fp16=0.004)
    # its matmuls alone decide
    assert sentences_of(busy(hopeless, 4)).startswith("Stay in fp32 on this machine")
    assert "Something else" not in sentences_of(GPU)


def test_fp32_that_is_slower_in_one_comparison_than_in_another_is_noise():
    first, *others = three([2.0] * 3)
    slow = replace(result("simple_net", "amp_fp16"), median={"fp32": 0.05, "amp": 0.01})
    found = page([first, *others, slow], bf16=4.0, fp16=4.0)
    assert "a median step of SimpleNet took 2.5 times as long" in sentences_of(found)


@pytest.mark.parametrize(
    "found", [LAPTOP, MIXED, page(complete=False)], ids=["laptop", "mixed", "early"]
)
def test_a_page_survives_json_fits_a_terminal_and_is_drawn(found):
    assert Page.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    assert max(map(len, page_text(found).splitlines())) <= 100
    figure, headline = bench_figure(found, recommend(found)), recommend(found).headline
    assert headline in figure.alt and headline[:40] in figure.get_suptitle()
    figure.draw_without_rendering()


def test_a_part_of_the_gap_that_only_a_gpu_has_is_shown_and_named():
    parts = {"casts": 0.0, "other ops": 0.0, "memory": 0.0, "launches": 6e-3, "unexplained": 0.0}
    one = result("char_gpt", speedup=0.9, gap=parts)
    assert "launches +6.00 ms" in page_text(page([one], device="cuda", bf16=8.0, fp16=8.0))
    text = recommend(page([one], device="cuda", bf16=8.0, fp16=8.0)).reasons
    assert any("waiting for the CPU to queue ops" in reason for reason in text)
