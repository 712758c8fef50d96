"""The roofline against its definition, and the cards against what their makers publish about
cores, clocks and memory.
"""

import pytest
import torch

from amp_course.speed.cards import CARDS, LAUNCH_SECONDS, find_card
from amp_course.speed.counting import CAST, MATMUL, OTHER, OpCall
from amp_course.speed.roofline import Roofline, format_of, place

ROUND = Roofline("round numbers", {"fp32": 1e12, "bf16": 4e12}, bandwidth=1e11, launch_seconds=1e-6)


def op(flops, moved, dtype=torch.float32, kind=MATMUL, name="aten.mm"):
    return OpCall(name, kind, dtype, flops, moved, ())


def test_the_ridge_is_where_the_slope_meets_the_peak():
    assert (ROUND.ridge("fp32"), ROUND.ridge("bf16")) == (10, 40)
    assert [ROUND.attainable(x, "bf16") for x in (1, 40, 400)] == [1e11, 4e12, 4e12]
    assert ROUND.attainable(ROUND.ridge("fp32"), "fp32") == 1e12


@pytest.mark.parametrize(
    ("call", "seconds", "bound"),
    [
        (op(10**9, 10**6), 1e-3, "compute"),
        (op(10**9, 10**6, torch.bfloat16), 2.5e-4, "compute"),
        (op(10**6, 10**8), 1e-3, "memory"),
        (op(10**3, 10**3), 1e-6, "launch"),
        (op(0, 10**8, kind=CAST), 1e-3, "memory"),
        (op(0, 0, None, kind=OTHER), 1e-6, "launch"),
    ],
)
def test_the_longest_of_three_times_is_an_ops_time(call, seconds, bound):
    assert ROUND.seconds(call) == pytest.approx(seconds)
    assert ROUND.bound(call) == bound
    assert ROUND.seconds(call) == max(ROUND.parts(call.flops, call.bytes, format_of(call)).values())


def test_times_add_up_by_bound():
    calls = [op(10**9, 10**6), op(10**6, 10**8), op(10**3, 10**3), op(10**3, 10**3)]
    assert ROUND.total(calls) == pytest.approx(1e-3 + 1e-3 + 2e-6)
    assert ROUND.by_bound(calls) == pytest.approx({"compute": 1e-3, "memory": 1e-3, "launch": 2e-6})
    assert ROUND.by_bound([]) == {"launch": 0, "memory": 0, "compute": 0}


def test_only_a_matmul_needs_a_peak():
    assert format_of(op(8, 8, torch.bfloat16)) == "bf16"
    assert (
        format_of(op(0, 8, torch.bfloat16, kind=OTHER))
        == format_of(op(0, 8, torch.int64, kind=OTHER))
        == "fp32"
    )
    assert ROUND.seconds(op(0, 10**8, torch.float16, kind=OTHER)) == 1e-3
    with pytest.raises(KeyError, match="fp16"):
        ROUND.seconds(op(8, 8, torch.float16))


def test_ops_that_are_alike_become_one_mark():
    big, other = op(10**9, 10**6), op(2 * 10**9, 10**6)
    cast, tiny = (op(0, moved, kind=CAST, name="aten._to_copy") for moved in (10**8, 8))
    marks = place(ROUND, [big, tiny, other, big, cast, cast])
    assert [(mark.op, mark.calls, mark.bound) for mark in marks] == [
        ("aten.mm", 2, "compute"),
        ("aten.mm", 1, "compute"),
        ("aten._to_copy", 2, "memory"),
        ("aten._to_copy", 1, "launch"),
    ]
    assert sum(mark.share for mark in marks) == pytest.approx(1)
    assert marks[0].intensity == 1000 and marks[0].flops_per_second == pytest.approx(1e12)
    assert marks[2].intensity == 0
    assert place(ROUND, []) == ()


# What the makers publish about each chip: cores × 2 × boost clock in GHz gives fp32; units ×
# multiply-adds a clock × 2 × clock gives fp16 with fp32 accumulation; bus width in bits × Gbit/s a
# pin / 8 gives the bandwidth.
CHIPS = {
    "GTX 1080 Ti": (3584 * 2 * 1.582, 3584 * 2 * 1.582, 352 * 11 / 8),
    "GTX 1650": (896 * 2 * 1.665, 896 * 2 * 1.665, 128 * 8 / 8),
    "V100 SXM2": (5120 * 2 * 1.53, 80 * 512 * 2 * 1.53, 4096 * 1.75 / 8),
    "T4": (2560 * 2 * 1.59, 40 * 512 * 2 * 1.59, 256 * 10 / 8),
    "A100 SXM 40 GB": (6912 * 2 * 1.41, 108 * 1024 * 2 * 1.41, 5120 * 2.43 / 8),
    "RTX 3090": (10496 * 2 * 1.695, 82 * 256 * 2 * 1.695, 384 * 19.5 / 8),
    "L4": (7424 * 2 * 2.04, 58 * 512 * 2 * 2.04, 192 * 12.5 / 8),
    "RTX 4090": (16384 * 2 * 2.52, 128 * 256 * 2 * 2.52, 384 * 21 / 8),
    "H100 SXM": (16896 * 2 * 1.98, 132 * 2048 * 2 * 1.83, 5120 * 5.23 / 8),
    "MI300X": (304 * 128 * 2 * 2.1, 304 * 1024 * 2 * 2.1, 8192 * 5.2 / 8),
}


@pytest.mark.parametrize("name", CHIPS)
def test_a_cards_figures_follow_from_its_chip(name):
    card, (fp32, fp16, gigabytes) = find_card(name), CHIPS[name]
    assert card.tera["fp32"] == pytest.approx(fp32 / 1000, rel=0.01)
    assert card.tera["fp16"] == pytest.approx(fp16 / 1000, rel=0.01)
    assert card.gigabytes_per_second == pytest.approx(gigabytes, rel=0.01)


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_a_cards_rates_are_dense_and_have_a_source(card):
    assert card.source and "fp32" in card.tera
    if card.printed:
        assert card.printed == pytest.approx(2 * card.tera["bf16"], rel=0.01)
    if "bf16" in card.tera:
        assert card.tera["bf16"] == card.tera["fp16"]
        assert card.tera["tf32"] == pytest.approx(card.tera["bf16"] / 2, rel=0.03)
    roofline = card.roofline()
    assert roofline.launch_seconds == LAUNCH_SECONDS == 5e-6
    assert roofline.peak_flops["fp16"] == card.tera["fp16"] * 1e12


def test_ridges_as_they_are_quoted():
    assert round(find_card("a100 sxm 40 gb").roofline().ridge("bf16")) == 201
    assert (
        round(find_card(" V100 SXM2 ").roofline().ridge("fp16")) == 139
    )  # NVIDIA's guide says 138.9
    assert round(find_card("H100 SXM").roofline().ridge("bf16")) == 295


def test_an_unknown_card_gets_the_list_of_cards():
    with pytest.raises(
        KeyError, match=r"no card is called 'A1000': choose one of GTX 1080 Ti, .*B200"
    ):
        find_card("A1000")
    assert len({card.name for card in CARDS}) == len(CARDS)
