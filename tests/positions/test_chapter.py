"""What chapter 03 says in prose, and about cells whose outputs are not compared."""

import math

import pytest
import torch

from amp_course.bits import BF16, FP16
from amp_course.positions import (
    Rope,
    alibi_bias,
    alibi_slopes,
    exact_angles,
    fixed_offset_scores,
    position_values,
    train_repeater,
    turn_error,
)
from amp_course.positions.alibi import bias_from_cast_ids
from amp_course.positions.experiment import LENGTH

SEEDS = range(3)
POSITIONS = torch.arange(4096)


@pytest.fixture(scope="module")
def runs(one_thread):
    """Train as the chapter does."""
    ids = torch.arange(LENGTH)
    kinds = {"float32": ids.float(), "bf16": ids.bfloat16()}
    found = {name: [train_repeater(of, seed) for seed in SEEDS] for name, of in kinds.items()}
    for name, fault in (("product", "none"), ("matmul", "matmul")):
        found[name] = [train_repeater(ids, 0, Rope(64, fault=fault), autocast=torch.bfloat16)]
    return found


@pytest.mark.slow
def test_float32_ids_are_as_good_past_256_as_below(runs):
    for run in runs["float32"]:
        assert run.losses[0] > 2.5 and run.losses[-1] < 0.2
        assert run.accuracy(0, 256) > 0.9
        assert abs(run.accuracy(256, LENGTH) - run.accuracy(0, 256)) < 0.05


@pytest.mark.slow
def test_bf16_ids_fall_off_a_cliff_at_256_and_another_at_512(runs):
    for run in runs["bf16"]:
        below, past, last = (run.accuracy(*ends) for ends in ((0, 256), (256, 512), (512, LENGTH)))
        assert below > 0.8 and below - past > 0.3 and past - last > 0.05
        # At 256 and not before: the last bin below it is as good as all of them.
        assert run.accuracy(224, 256) > below - 0.05
        assert run.accuracy(256, 288) < 0.6


@pytest.mark.slow
def test_16_bit_training_is_not_to_blame(runs):
    product, matmul = runs["product"][0], runs["matmul"][0]
    assert product.accuracy(0, 256) > 0.9 and product.accuracy(256, LENGTH) > 0.9
    assert matmul.accuracy(0, 256) - matmul.accuracy(256, LENGTH) > 0.3


def test_the_gap_of_three():
    ids = torch.tensor([[3.0, 0.0], [1003.0, 1000.0], [10_003.0, 10_000.0]]).bfloat16()
    assert (ids[:, 0] - ids[:, 1]).tolist() == [3.0, 4.0, 0.0]


def test_angle_errors_of_the_four():
    errors = {
        fault: turn_error(Rope(64, fault=fault), POSITIONS)
        for fault in ("ids", "frequencies", "angles", "none")
    }
    assert errors["ids"][:257].max() < 0.003 and errors["ids"].max() > 2.5
    assert errors["angles"].max() > 2.5
    assert 1 < errors["frequencies"].max() < math.pi
    assert errors["none"].max() < 0.003
    frequencies = Rope(64).inverse_frequencies()
    assert (frequencies.bfloat16().float() / frequencies - 1).abs().max() <= 1 / 256
    assert BF16.eps * 2048 == 16  # the spacing of bf16 at 3,000


def test_float32_has_an_error_of_its_own():
    def worst(positions):
        return (Rope(64).angles(positions) - exact_angles(positions, 64)).abs().max().item()

    assert worst(POSITIONS) < 0.0002
    assert 0.02 < worst(1_000_000 - torch.arange(2000)) < 0.06


def test_two_scores_are_flat_and_two_are_not():
    starts = torch.arange(0, 4096, 3)
    spread = {}
    for fault in ("ids", "frequencies", "angles", "none"):
        scores = fixed_offset_scores(Rope(64, fault=fault), starts, 3)
        spread[fault] = (scores.max() - scores.min()).item()
    assert max(spread["frequencies"], spread["none"]) < 0.01
    assert min(spread["ids"], spread["angles"]) > 0.15


def test_the_matmul_loses_14_radians_by_4096():
    positions = torch.arange(4097)
    right = exact_angles(positions, 64)
    worst = (Rope(64, fault="matmul").angles(positions) - right).abs().max().item()
    assert 14 < worst < 15 and worst > 2 * 2 * math.pi
    assert (Rope(64).angles(positions) - right).abs().max() < 0.001


def test_autocast_takes_the_matmul_and_spares_the_product():
    column, row = torch.ones(4, 1), torch.ones(1, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (column @ row).dtype == torch.bfloat16
        assert (column * row).dtype == torch.float32


def test_alibi_of_the_last_tokens():
    slopes, query, keys = alibi_slopes(8), torch.tensor([4095]), torch.arange(4056, 4096)
    wrong = bias_from_cast_ids(slopes, query, keys, BF16)[0, 0]
    _, counts = wrong.unique_consecutive(return_counts=True)
    assert counts.tolist()[-2:] == [15, 8]
    assert alibi_bias(slopes, query, keys)[0, 0].diff().unique().tolist() == [0.5]


def test_the_published_example_is_off_by_078():
    """gpt-neox#1003, from its text: cos in fp16 against float32, length 2,048, 32 channels."""
    frequencies = 1.0 / (10_000.0 ** (torch.arange(0, 32, 2).float() / 32))
    positions = torch.arange(2048).float()
    low = positions.to(FP16.dtype)[:, None] * frequencies.to(FP16.dtype)
    assert (
        low.cos().float() - (positions[:, None] * frequencies).cos()
    ).abs().max().item() == pytest.approx(0.78, abs=0.005)


def test_positions_of_an_image_from_65536_are_one():
    """diffusers PR#13922: positions of a picture begin at 65,536, where bf16's spacing is 512."""
    assert position_values(65_536 + 257, BF16, start=65_536).unique().tolist() == [65_536.0]
