"""Engines against the model itself in fp64 and numpy with ml_dtypes; the mismatch by format;
a small policy gradient.
"""

import copy
import math

import ml_dtypes
import numpy as np
import pytest
import torch

from amp_course.bits import BF16, FP16, FP32, TF32, round_to
from amp_course.frontiers import mismatch as mm
from amp_course.frontiers.engines import Policy, rounded
from amp_course.frontiers.mismatch_figures import mismatch_figure
from amp_course.frontiers.policy_gradient import alternation, gradient_gap, reinforce

pytestmark = pytest.mark.usefixtures("one_thread")
FORMATS = (FP32, FP16, BF16)
both_engines = pytest.mark.parametrize("inference", [False, True], ids=["training", "inference"])


@pytest.fixture(scope="module")
def model():
    return mm.small_policy(steps=40, context=64)


@pytest.fixture(scope="module")
def found(model):
    return {fmt.name: mm.measure(model, fmt, sequences=16, tokens=63) for fmt in FORMATS}


def some_ids(model, *shape):
    return torch.randint(model.vocab_size, shape, generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def in_fp64(model, ids):
    return copy.deepcopy(model).double()(ids)


# The engines


@both_engines
def test_in_fp32_every_engine_computes_the_model(model, inference):
    ids = some_ids(model, 3, 40)
    exact = in_fp64(model, ids)
    with torch.no_grad():
        policy = Policy(model, FP32, inference=inference)
        whole = policy.logits(ids)
        cache = {}
        one_by_one = torch.cat([policy.logits(ids[:, t : t + 1], cache) for t in range(40)], 1)
        rest = {}  # the mask with a cache and more than one token
        in_two = torch.cat([policy.logits(ids[:, :25], rest), policy.logits(ids[:, 25:], rest)], 1)
    for got in (whole, one_by_one, in_two):
        assert (got - exact).abs().max() < 2e-5


@both_engines
def test_a_linear_layer_rounds_where_it_says(model, inference):
    # multiples of 1/16 of 7 bits: bf16 has them, and fp32 adds them exactly
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(-64, 65, (5, 1, 64), generator=generator) / 16
    weight = torch.randint(-64, 65, (model.vocab_size, 64), generator=generator) / 16
    policy = Policy(model, BF16, inference=inference)
    policy.weights["head.weight"] = weight
    got = policy._linear(x, "head").squeeze(1).numpy()
    pieces, total = 4 if inference else 1, 0.0
    rows = np.split(x.squeeze(1).numpy(), pieces, 1), np.split(weight.numpy(), pieces, 1)
    for a, b in zip(*rows, strict=True):
        piece = a.astype(np.float64) @ b.astype(np.float64).T
        total = total + piece.astype(ml_dtypes.bfloat16).astype(np.float64)
    expected = total.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float32)
    assert np.array_equal(got, expected)


@both_engines
@pytest.mark.parametrize("fmt", [BF16, FP16, TF32], ids=lambda fmt: fmt.name)
def test_logits_have_values_of_the_format(model, inference, fmt):
    with torch.no_grad():
        logits = Policy(model, fmt, inference=inference).logits(torch.arange(12).view(2, 6))
    assert torch.equal(logits, round_to(logits, fmt)) and logits.std() > 0.1


@pytest.mark.parametrize("fmt", [BF16, FP16])
def test_the_fast_rounding_is_round_to(fmt):
    patterns = torch.arange(2**16, dtype=torch.int32) << 16
    for last in (0, 1, 0x1000, 0x7FFF, 0x8000, 0x8001, 0xFFFF):
        x = (patterns + last).view(torch.float32)
        x = x[x.isfinite()]
        assert torch.equal(rounded(x, fmt), round_to(x, fmt))


def test_gradients_reach_the_weights_as_if_nothing_was_rounded(model):
    ids = some_ids(model, 2, 17)
    gradients = {}
    for name, log_p in {
        "model": torch.log_softmax(model(ids[:, :-1]), -1).gather(2, ids[:, 1:, None])[..., 0],
        "fp32": mm.log_probs(Policy(model, FP32), ids),
        "bf16": mm.log_probs(Policy(model, BF16, inference=True), ids),
    }.items():
        found = torch.autograd.grad(log_p.sum(), list(model.parameters()), allow_unused=False)
        gradients[name] = torch.cat([gradient.flatten() for gradient in found]).double()
    length = gradients["model"].norm()
    assert (gradients["fp32"] - gradients["model"]).norm() < 1e-5 * length
    assert 1e-4 * length < (gradients["bf16"] - gradients["model"]).norm() < 0.1 * length


def test_training_in_bf16_is_as_far_from_fp32_as_autocast_is(model):
    ids = some_ids(model, 4, 64)
    exact = torch.log_softmax(in_fp64(model, ids), -1)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        real = torch.log_softmax(model(ids).double(), -1)
    with torch.no_grad():
        emulated = torch.log_softmax(Policy(model, BF16).logits(ids).double(), -1)
    real_error, error = ((one - exact).abs().mean() for one in (real, emulated))
    assert 0.5 < error / real_error < 2


# The mismatch


def test_what_a_mismatch_says_of_itself():
    ratios = torch.tensor([[math.log(2), 0.0], [0.0, -math.log(4)]], dtype=torch.float64)
    one = mm.Mismatch("bf16", ratios)
    assert one.mean == pytest.approx(3 * math.log(2) / 4)
    assert one.largest == pytest.approx(2 * math.log(2))
    assert one.sequence_ratios.tolist() == pytest.approx([2, 0.25])
    assert one.divergence == pytest.approx(((2 - 1 - math.log(2)) + (0.25 - 1 + math.log(4))) / 4)


def test_three_bits_more_make_log_ratios_eight_times_smaller(found):
    fp32, fp16, bf16 = found.values()
    assert 5 < bf16.mean / fp16.mean < 12 and 4 < bf16.largest / fp16.largest < 16
    assert 25 < bf16.divergence / fp16.divergence < 144  # it is quadratic: 64
    assert bf16.mean > 1e-3 and fp32.mean < 1e-6


def test_tokens_are_drawn_with_their_probabilities(model):
    ids, sampled = mm.sample(model, FP32, 20_000, 1, seed=5)
    with torch.no_grad():
        logits = Policy(model, FP32).logits(torch.zeros(1, 1, dtype=torch.int64))
    p = logits[0, 0].double().softmax(-1)
    share = torch.bincount(ids[:, 1], minlength=len(p)).double() / len(ids)
    assert ((share - p).abs() <= 5 * (p * (1 - p) / len(ids)).sqrt() + 1e-4).all()
    assert torch.allclose(sampled[:, 0], p[ids[:, 1]].log(), atol=1e-5)


def test_with_this_machines_own_kernels_it_is_the_same(model):
    fp32, fp16, bf16 = (
        mm.measure_with_torch(model, dtype, sequences=4, tokens=40)
        for dtype in (torch.float32, torch.float16, torch.bfloat16)
    )
    assert fp32.largest < 1e-5 and 4 < bf16.mean / fp16.mean < 16
    assert model.head.weight.dtype == torch.float32  # the model itself is not cast


def test_runs_repeat_and_leave_the_random_state_alone():
    state = torch.get_rng_state()
    model, again, other = (mm.small_policy(seed, steps=2, context=16) for seed in (4, 4, 5))
    assert all(map(torch.equal, model.parameters(), again.parameters()))
    assert not torch.equal(other.head.weight, model.head.weight)
    first, second, another = (
        mm.measure(model, BF16, sequences=2, tokens=10, seed=seed).log_ratios for seed in (1, 1, 2)
    )
    assert torch.equal(first, second) and not torch.equal(first, another)
    runs = [reinforce(model, BF16, steps=2, sequences=4, tokens=6) for _ in range(2)]
    assert runs[0] == runs[1]
    assert torch.equal(torch.get_rng_state(), state)


def test_more_tokens_than_positions_are_refused(model):
    words = "65 tokens in a row, but this model has only 64 positions"
    with pytest.raises(ValueError, match=words):
        mm.sample(model, FP32, 1, 65, seed=0)


# The policy gradient


def test_the_reward():
    ids = torch.tensor(
        [[9, 1, 2, 1, 2, 1], [1, 1, 1, 1, 1, 1], [0, 1, 2, 1, 3, 1], [0, 1, 2, 3, 4, 5]]
    )
    assert alternation(ids).tolist() == pytest.approx([1, 0, 2 / 3, 0])


@pytest.mark.slow
@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
def test_a_policy_learns_whatever_the_format(fmt):
    """Nothing more is claimed: at this size formats differ by no more than seeds do."""
    model = mm.small_policy(0, steps=60, context=16)
    before = [parameter.clone() for parameter in model.parameters()]
    rewards = reinforce(model, fmt, seed=2, steps=30, sequences=24, tokens=12)
    assert len(rewards) == 30 and rewards[0] < 0.2 and sum(rewards[-10:]) / 10 > 2 * rewards[0]
    assert all(map(torch.equal, before, model.parameters()))


def test_the_mismatch_changes_a_gradient_by_far_less_than_chance(model):
    fp16, bf16 = (gradient_gap(model, fmt, sequences=16, tokens=63) for fmt in (FP16, BF16))
    assert 3 < bf16.mismatch / fp16.mismatch < 25
    assert 0.003 < bf16.mismatch < 0.2 and 0.5 < bf16.chance < 4 and 0.5 < fp16.chance < 4


# The figure


def test_the_mismatch_figure_has_a_curve_and_a_mark_for_each_sequence(found):
    figure = mismatch_figure(list(found.values()))
    curves, dots = figure.axes
    assert [line.get_label() for line in curves.lines] == ["fp32", "fp16", "bf16"]
    assert len({line.get_linestyle() for line in curves.lines}) == 3
    assert curves.get_xscale() == "log"
    for line, one in zip(curves.lines, found.values(), strict=True):
        for x, y in list(zip(line.get_xdata(), line.get_ydata(), strict=True))[::20]:
            share = (one.log_ratios.abs() >= x).double().mean().item()
            assert share == pytest.approx(y, abs=0.01)
    for line, one in zip(dots.lines[:3], found.values(), strict=True):
        assert line.get_ydata() == pytest.approx(one.sequence_ratios.numpy())
    assert len({line.get_marker() for line in dots.lines[:3]}) == 3
    assert f"bf16 {found['bf16'].mean:.1e}, ratios " in figure.alt
    same = mm.Mismatch("E5M6", torch.zeros(2, 3, dtype=torch.float64))  # has no place on a log axis
    assert "E5M6 0.0e+00, ratios 1.000 to 1.000" in mismatch_figure([same]).alt
