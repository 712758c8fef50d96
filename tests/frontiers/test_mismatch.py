"""Engines against the model itself in fp64 and numpy with ml_dtypes; the mismatch by format;
a small policy gradient.
"""

import itertools
import math
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
import torch

from amp_course.bits import BF16, FP8_E4M3, FP16, FP32, TF32, round_to
from amp_course.frontiers import mismatch as mm
from amp_course.frontiers.engines import INFERENCE, REORDERED, TRAINING, Engine, Policy, rounded
from amp_course.frontiers.mismatch_figures import mismatch_figure
from amp_course.frontiers.policy_gradient import alternation, gradient_gap, reinforce
from amp_course.kit.models import CharGPT

pytestmark = pytest.mark.usefixtures("one_thread")
ENGINES = (TRAINING, INFERENCE, REORDERED)
BFLOAT16 = ml_dtypes.bfloat16


@pytest.fixture(scope="module")
def models() -> list[CharGPT]:
    return [mm.small_policy(seed) for seed in range(3)]


@pytest.fixture(scope="module")
def found(models) -> dict[tuple[str, str, int], mm.Mismatch]:
    return {
        (engine.name, fmt.name, seed): mm.measure(
            model, fmt, inference=engine, sequences=16, seed=seed
        )
        for engine, fmt, (seed, model) in itertools.product(
            (INFERENCE, REORDERED), (FP32, FP16, BF16), enumerate(models)
        )
    }


def in_fp64(model: CharGPT, ids):
    before = model.head.weight.dtype
    try:
        with torch.no_grad():
            return model.double()(ids)
    finally:
        model.to(before)


# The engines


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
def test_in_fp32_every_engine_computes_the_model(models, engine: Engine) -> None:
    model = models[0]
    ids = torch.randint(model.vocab_size, (3, 40), generator=torch.Generator().manual_seed(0))
    exact = in_fp64(model, ids)
    with torch.no_grad():
        policy = Policy(model, FP32, engine)
        whole = policy.logits(ids)
        cache: dict = {}
        one_by_one = torch.cat([policy.logits(ids[:, t : t + 1], cache) for t in range(40)], 1)
    assert (whole - exact).abs().max() < 2e-5 and (one_by_one - exact).abs().max() < 2e-5
    assert torch.equal(one_by_one.argmax(-1), exact.argmax(-1))
    rest = {}
    with torch.no_grad():
        in_two = torch.cat([policy.logits(ids[:, :25], rest), policy.logits(ids[:, 25:], rest)], 1)
    assert (in_two - exact).abs().max() < 2e-5  # the mask with a cache and more than one token


@pytest.mark.parametrize("pieces", [1, 2, 4])
@pytest.mark.parametrize("round_pieces", [False, True])
def test_a_linear_layer_rounds_where_it_says(models, pieces: int, round_pieces: bool) -> None:
    model = models[0]
    x = torch.randint(-64, 65, (5, 1, 64), generator=torch.Generator().manual_seed(1)) / 16
    weight = (
        torch.randint(-64, 65, (model.vocab_size, 64), generator=torch.Generator().manual_seed(2))
        / 16
    )
    policy = Policy(model, BF16, Engine("one", pieces, round_pieces))
    policy.weights["head.weight"] = (
        weight  # multiples of 1/16 of 7 bits: bf16 has them, and fp32 adds them exactly
    )
    got = policy._linear(x, "head").squeeze(1).numpy()
    total = 0.0
    for a, b in zip(
        np.split(x.squeeze(1).numpy(), pieces, 1), np.split(weight.numpy(), pieces, 1), strict=True
    ):
        piece = a.astype(np.float64) @ b.astype(np.float64).T
        total = total + (piece.astype(BFLOAT16).astype(np.float64) if round_pieces else piece)
    expected = total.astype(np.float32).astype(BFLOAT16).astype(np.float32)
    assert np.array_equal(got, expected)


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
@pytest.mark.parametrize("fmt", [BF16, FP16, TF32, FP8_E4M3], ids=lambda fmt: fmt.name)
def test_logits_have_values_of_the_format(models, engine: Engine, fmt) -> None:
    with torch.no_grad():
        logits = Policy(models[0], fmt, engine).logits(torch.arange(12).view(2, 6))
    assert (
        torch.equal(logits, round_to(logits, fmt))
        and logits.isfinite().all()
        and logits.std() > 0.1
    )


@pytest.mark.parametrize("fmt", [BF16, FP16])
def test_the_fast_rounding_is_round_to(fmt) -> None:
    patterns = torch.arange(2**16, dtype=torch.int32) << 16
    for last in (0, 1, 0x1000, 0x7FFF, 0x8000, 0x8001, 0xFFFF):
        x = (patterns + last).view(torch.float32)
        x = x[x.isfinite()]
        assert torch.equal(rounded(x, fmt), round_to(x, fmt))


def test_gradients_reach_the_weights_as_if_nothing_was_rounded(models) -> None:
    model = models[0]
    ids = torch.randint(model.vocab_size, (2, 17), generator=torch.Generator().manual_seed(3))
    gradients = {}
    for name, log_p in {
        "model": torch.log_softmax(model(ids[:, :-1]), -1).gather(2, ids[:, 1:, None])[..., 0],
        "fp32": mm.log_probs(Policy(model, FP32, TRAINING), ids),
        "bf16": mm.log_probs(Policy(model, BF16, INFERENCE), ids),
    }.items():
        found = torch.autograd.grad(log_p.sum(), list(model.parameters()), allow_unused=False)
        gradients[name] = torch.cat([gradient.flatten() for gradient in found]).double()
    length = gradients["model"].norm()
    assert (gradients["fp32"] - gradients["model"]).norm() < 1e-5 * length
    assert 1e-4 * length < (gradients["bf16"] - gradients["model"]).norm() < 0.1 * length


def test_training_in_bf16_is_as_far_from_fp32_as_autocast_is(models) -> None:
    model = models[0]
    ids = torch.randint(model.vocab_size, (4, 65), generator=torch.Generator().manual_seed(4))
    exact = torch.log_softmax(in_fp64(model, ids), -1)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        real = torch.log_softmax(model(ids).double(), -1)
    with torch.no_grad():
        emulated = torch.log_softmax(Policy(model, BF16, TRAINING).logits(ids).double(), -1)
    real_error, error = ((one - exact).abs().mean() for one in (real, emulated))
    assert 0.5 < error / real_error < 2


# The mismatch


def test_what_a_mismatch_says_of_itself() -> None:
    one = mm.Mismatch(
        "bf16", torch.tensor([[math.log(2), 0.0], [0.0, -math.log(4)]], dtype=torch.float64)
    )
    assert one.mean == pytest.approx(3 * math.log(2) / 4) and one.largest == pytest.approx(
        2 * math.log(2)
    )
    assert one.identical == 0.5 and one.sequence_ratios.tolist() == pytest.approx([2, 0.25])
    assert one.effective_share == pytest.approx(2.25**2 / (2 * (4 + 1 / 16)))
    assert one.divergence == pytest.approx(((2 - 1 - math.log(2)) + (0.25 - 1 + math.log(4))) / 4)
    none = mm.Mismatch("fp32", torch.zeros(3, 5, dtype=torch.float64))
    assert (none.mean, none.largest, none.identical, none.effective_share, none.divergence) == (
        0,
        0,
        1,
        1,
        0,
    )


@pytest.mark.slow
def test_three_bits_more_make_log_ratios_eight_times_smaller(found) -> None:
    for seed in range(3):
        fp32, fp16, bf16 = (found["inference", name, seed] for name in ("fp32", "fp16", "bf16"))
        assert 5 < bf16.mean / fp16.mean < 12 and 4 < bf16.largest / fp16.largest < 16
        assert 25 < bf16.divergence / fp16.divergence < 144  # it is quadratic: 64
        assert bf16.mean > 1e-3 and fp32.mean < 1e-6
        assert fp32.effective_share > fp16.effective_share > bf16.effective_share
        assert (
            (bf16.sequence_ratios - 1).abs().max() > 0.03 > (fp16.sequence_ratios - 1).abs().max()
        )


def test_another_order_of_sums_alone_does_little_and_no_more_in_bf16(found) -> None:
    for seed in range(3):
        fp16, bf16 = (found["sums in another order", name, seed] for name in ("fp16", "bf16"))
        assert 0.5 < fp16.identical < bf16.identical
        assert fp16.mean < found["inference", "fp16", seed].mean / 10
        assert bf16.mean < found["inference", "bf16", seed].mean / 50


def test_fp16_is_as_exact_as_tf32_which_has_its_significand(models) -> None:
    fp16, tf32 = (mm.measure(models[0], fmt, sequences=8, tokens=60) for fmt in (FP16, TF32))
    assert 0.8 < fp16.mean / tf32.mean < 1.25


def test_an_engine_agrees_with_itself_but_for_the_cache(models) -> None:
    ids, sampled = mm.sample(Policy(models[0], FP32, TRAINING), 4, 30, seed=0)
    with torch.no_grad():
        assert (mm.log_probs(Policy(models[0], FP32, TRAINING), ids) - sampled).abs().max() < 1e-5
    assert (
        ids.shape == (4, 31)
        and sampled.shape == (4, 30)
        and (sampled < 0).all()
        and not sampled.requires_grad
    )


def test_tokens_are_drawn_with_their_probabilities(models) -> None:
    policy = Policy(models[0], FP32, INFERENCE)
    ids, _ = mm.sample(policy, 20_000, 1, seed=5)
    with torch.no_grad():
        p = policy.logits(torch.zeros(1, 1, dtype=torch.int64))[0, 0].double().softmax(-1)
    share = torch.bincount(ids[:, 1], minlength=len(p)).double() / len(ids)
    assert ((share - p).abs() <= 5 * (p * (1 - p) / len(ids)).sqrt() + 1e-4).all()


def test_with_this_machines_own_kernels_it_is_the_same(models) -> None:
    for model in models[:2]:
        fp32, fp16, bf16 = (
            mm.measure_with_torch(model, dtype, sequences=4, tokens=64)
            for dtype in (torch.float32, torch.float16, torch.bfloat16)
        )
        assert fp32.largest < 1e-5 and 4 < bf16.mean / fp16.mean < 16
        assert model.head.weight.dtype == torch.float32  # the model itself is not cast


def test_runs_repeat_and_leave_the_random_state_alone() -> None:
    state = torch.get_rng_state()
    model, again = mm.small_policy(4, steps=2, context=16), mm.small_policy(4, steps=2, context=16)
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True)
    )
    first, second = (mm.measure(model, BF16, sequences=2, tokens=10, seed=1) for _ in range(2))
    assert torch.equal(first.log_ratios, second.log_ratios)
    runs = [reinforce(model, BF16, steps=2, sequences=4, tokens=6) for _ in range(2)]
    assert runs[0] == runs[1]
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(mm.small_policy(5, steps=2, context=16).head.weight, model.head.weight)
    other = mm.measure(model, BF16, sequences=2, tokens=10, seed=2)
    assert not torch.equal(first.log_ratios, other.log_ratios)


def test_bad_input_is_refused_with_a_reason(models) -> None:
    with pytest.raises(ValueError, match="none: a dot product has at least 1 piece, not 0"):
        Engine("none", 0)
    with pytest.raises(
        ValueError, match="129 tokens in a row, but this model has only 128 positions"
    ):
        mm.sample(Policy(models[0], FP32, TRAINING), 1, 129, seed=0)
    with pytest.raises(ValueError, match="number of steps is 0: ask for at least 1"):
        mm.small_policy(steps=0)
    with pytest.raises(ValueError, match="there are only 2: sample 3 or more"):
        alternation(torch.zeros(1, 3, dtype=torch.int64))


# The policy gradient


def test_the_reward() -> None:
    ids = torch.tensor(
        [[9, 1, 2, 1, 2, 1], [1, 1, 1, 1, 1, 1], [0, 1, 2, 1, 3, 1], [0, 1, 2, 3, 4, 5]]
    )
    assert alternation(ids).tolist() == pytest.approx([1, 0, 2 / 3, 0])


@pytest.mark.slow
def test_a_policy_learns_whatever_the_format() -> None:
    """Nothing more is claimed: at this size formats differ by no more than seeds do."""
    model = mm.small_policy(0, steps=60, context=16)
    before = [parameter.clone() for parameter in model.parameters()]
    runs = {
        fmt.name: reinforce(model, fmt, seed=2, steps=30, sequences=24, tokens=12)
        for fmt in (FP32, FP16, BF16)
    }
    for run in runs.values():
        assert len(run.rewards) == len(run.divergences) == 30
        assert run.rewards[0] < 0.2 and run.last() > 2 * run.rewards[0]
    assert runs["fp32"].divergences[0] < runs["fp16"].divergences[0] / 100
    assert runs["fp16"].divergences[0] < runs["bf16"].divergences[0] / 10
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_the_mismatch_changes_a_gradient_by_far_less_than_chance(models) -> None:
    fp16, bf16 = (gradient_gap(models[0], fmt, sequences=16) for fmt in (FP16, BF16))
    assert 3 < bf16.mismatch / fp16.mismatch < 25
    assert 0.005 < bf16.mismatch < 0.2 and 0.5 < bf16.chance < 2 and 0.5 < fp16.chance < 2


# The figures


def test_the_mismatch_figure_has_a_curve_and_a_mark_for_each_sequence(found) -> None:
    shown = [found["inference", name, seed] for name in ("fp32", "fp16", "bf16") for seed in (0, 1)]
    figure = mismatch_figure(shown)
    curves, dots = figure.axes
    assert [line.get_label() for line in curves.lines] == ["fp32", "fp16", "bf16"]
    assert len({line.get_linestyle() for line in curves.lines}) > 1 and curves.get_xscale() == "log"
    for number, line in enumerate(curves.lines):
        every = torch.cat(
            [one.log_ratios.abs().flatten() for one in shown[2 * number : 2 * number + 2]]
        )
        for x, y in list(zip(line.get_xdata(), line.get_ydata(), strict=True))[::20]:
            assert (every >= x).double().mean().item() == pytest.approx(y, abs=0.01)
    for number, line in enumerate(dots.lines[:3]):
        both = torch.cat([one.sequence_ratios for one in shown[2 * number : 2 * number + 2]])
        assert line.get_ydata() == pytest.approx(both.numpy())
    assert len({line.get_marker() for line in dots.lines[:3]}) == 3
    bf16 = torch.cat([one.log_ratios.abs() for one in shown[4:]]).mean()
    assert f"bf16 {bf16:.1e}, ratios " in figure.alt


def test_a_mismatch_of_nothing_can_be_drawn_and_none_cannot() -> None:
    none = mm.Mismatch("fp32", torch.zeros(2, 3, dtype=torch.float64))
    figure = mismatch_figure([none, replace(none, format="E5M6")])
    assert "fp32 0.0e+00, ratios 1.000 to 1.000" in figure.alt
    with pytest.raises(ValueError, match="no mismatch to draw"):
        mismatch_figure([])
