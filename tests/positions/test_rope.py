"""RoPE against complex numbers in float64; each fault does what its name says;
odd head sizes are refused.
"""

import math

import pytest
import torch

from amp_course.bits import BF16, FP8_E4M3, FP16, round_to
from amp_course.positions import Rope, exact_angles, fixed_offset_scores, turn_error
from amp_course.positions.rope import FAULTS, similarity, turned

POSITIONS = torch.arange(4096)


def by_complex_numbers(x, positions, base=10_000.0):
    half = x.shape[-1] // 2
    first, second = x.double().chunk(2, dim=-1)
    frequency = torch.tensor([base ** (-c / half) for c in range(half)], dtype=torch.float64)
    angle = positions.double()[:, None] * frequency
    turned = torch.complex(first, second) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([turned.real, turned.imag], dim=-1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [2, 6, 64])
def test_the_right_one_turns_as_complex_numbers_do(dtype, size):
    x = torch.randn(3, 50, size, generator=torch.Generator().manual_seed(0)).to(dtype)
    positions = 7000 + torch.arange(50)
    got = Rope(size).rotate(x, positions)
    assert got.dtype == dtype
    assert (got.double() - by_complex_numbers(x, positions)).abs().max() < 0.05


def test_pairs_are_c_and_c_plus_half():
    assert turned(torch.tensor([[1.0, 0.0]]), torch.zeros(1, 1), torch.ones(1, 1)).tolist() == [
        [0.0, 1.0]
    ]


def test_each_fault_rounds_its_own_step():
    frequencies = Rope(64).inverse_frequencies()
    right = POSITIONS.float()[:, None] * frequencies
    cast = POSITIONS.bfloat16().float()
    expected = {
        "ids": cast[:, None] * frequencies,
        "frequencies": POSITIONS.float()[:, None] * frequencies.bfloat16().float(),
        "angles": right.bfloat16().float(),
        "matmul": (cast[:, None] * frequencies.bfloat16().float()).bfloat16().float(),
        "none": right,
    }
    assert set(expected) == set(FAULTS)
    for fault, angles in expected.items():
        assert torch.equal(Rope(64, fault=fault).angles(POSITIONS), angles), fault


@pytest.mark.parametrize("fmt", [BF16, FP16], ids=lambda fmt: fmt.name)
def test_tables_are_cast_last(fmt):
    cos, sin = Rope(64, fmt=fmt).tables(POSITIONS)
    right = POSITIONS.float()[:, None] * Rope(64).inverse_frequencies()
    assert torch.equal(cos, right.cos().to(fmt.dtype).float()) and torch.equal(
        sin, right.sin().to(fmt.dtype).float()
    )


def test_ids_may_come_in_any_format():
    rope = Rope(8, fault="ids", fmt=FP8_E4M3)
    assert rope.angles(torch.tensor([17]))[0, 0] == 16.0
    assert torch.equal(rope.angles(POSITIONS[:16]), Rope(8).angles(POSITIONS[:16]))


def test_turn_error_is_the_angle_between_what_is_and_what_should_be():
    low = turn_error(Rope(64, fault="ids"), POSITIONS)
    exact = exact_angles(POSITIONS, 64)
    wrong = exact_angles(round_to(POSITIONS.double(), BF16), 64)
    difference = torch.remainder(wrong - exact + math.pi, 2 * math.pi) - math.pi
    assert (low - difference.abs()).abs().max() < 0.01
    assert low[:257].max() < 0.003 < 1.0 < low[257:].max() <= math.pi


def test_right_scores_are_flat_and_start_with_the_undisturbed_one():
    starts = torch.arange(0, 4096, 5)
    right, ids = (
        fixed_offset_scores(Rope(64, fault=fault), starts, 3) for fault in ("none", "ids")
    )
    assert (right.max() - right.min()) < 0.01
    assert (ids.max() - ids.min()) > 0.1
    assert fixed_offset_scores(Rope(64), starts, 0).sub(1).abs().max() < 0.01


def test_similarity_is_one_for_equal_ids_and_depends_on_distance_alone():
    right = torch.tensor(similarity(range(1000, 1020), 32), dtype=torch.float64)
    for distance in range(20):
        assert right.diagonal(distance).std(correction=0) < 1e-9
    assert right.diagonal().sub(1).abs().max() < 1e-12
    with_inf = torch.tensor(similarity([5.0, 5.0, math.inf], 32))
    assert with_inf[:2, :2].isfinite().all() and with_inf[2].isnan().all()
    assert with_inf[:, 2].isnan().all()


@pytest.mark.parametrize("size", [63, 0])
def test_odd_and_empty_heads_are_refused(size):
    makers = (Rope, lambda one: exact_angles(POSITIONS, one), lambda one: similarity([0.0], one))
    for make in makers:
        with pytest.raises(ValueError, match="RoPE needs an even head size"):
            make(size)


def test_other_bad_input_is_told():
    for size in (64.0, "64", None):
        with pytest.raises(TypeError, match="a head size has to be an int"):
            Rope(size)
    for base in (1, math.inf, math.nan):
        with pytest.raises(ValueError, match="has to be above 1"):
            Rope(64, base=base)
    with pytest.raises(ValueError, match="unknown fault 'typo'"):
        Rope(64, fault="typo")
    with pytest.raises(ValueError, match="autocast has no fp8 E4M3"):
        Rope(64, fault="matmul", fmt=FP8_E4M3)
