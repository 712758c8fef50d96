"""What chapter 02 says in prose about cells whose outputs are not compared."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from amp_course.bits.formats import BF16, FP8_E4M3, FP8_E5M2, FP16
from amp_course.kit.data import CharText, digit_batches, digits, documentation_text, text_batches
from amp_course.kit.models import CharGPT, DigitsResNet
from amp_course.underflow import (
    GradientRecorder,
    kahan_running_sum,
    pairwise_sum,
    running_sum,
    stochastic_round,
    zone_fractions,
)


def train_and_record(model, optimizer, batches):
    for number, (x, y) in enumerate(batches, 1):
        if number == len(batches):
            with GradientRecorder(model) as recorder:
                cross_entropy(model(x).flatten(0, -2), y.flatten()).backward()
            return recorder
        cross_entropy(model(x).flatten(0, -2), y.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.fixture(scope="module")
def gpt(one_thread):
    """The run of section 3, and the step after it of section 5."""
    text = CharText(documentation_text())
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = CharGPT.for_device("cpu", vocab_size=len(text.vocabulary))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    recorder = train_and_record(
        model, optimizer, text_batches(text, 8, model.context, steps=21, seed=1)
    )
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer.step()
    updates = [
        (old, new.detach() - old) for old, new in zip(before, model.parameters(), strict=True)
    ]
    return recorder, updates


@pytest.fixture(scope="module")
def cnn(one_thread):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = DigitsResNet.for_device("cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return train_and_record(model, optimizer, digit_batches(digits(), 64, steps=45, seed=1))


def together(gradients):
    return torch.cat(list(gradients.values()))


@pytest.mark.slow
def test_gradients_between_layers_die_first(gpt, cnn):
    for recorder in (gpt[0], cnn):
        weights, outputs = together(recorder.weights), together(recorder.outputs)
        of_weights, of_outputs = zone_fractions(weights, FP16), zone_fractions(outputs, FP16)
        assert of_outputs.lost > 2 * of_weights.lost
        assert of_outputs.subnormal > 0.7 and of_outputs.subnormal > of_weights.subnormal
    assert zone_fractions(together(gpt[0].outputs), FP16).lost > 0.02
    assert zone_fractions(weights, FP16).lost < 0.001
    check_other_formats(cnn)


def test_the_layer_that_loses_most_computes_queries_and_keys(gpt):
    lost = {name: zone_fractions(gradient, FP16).lost for name, gradient in gpt[0].outputs.items()}
    most, second = sorted(lost, key=lost.get, reverse=True)[:2]
    assert most == "blocks.1.qkv" and lost[most] > 0.1 and lost[most] > 2 * lost[second]


def check_other_formats(recorder):
    for kind in (recorder.weights, recorder.outputs):
        assert zone_fractions(together(kind), BF16).lost < 1e-6
    assert zone_fractions(together(recorder.outputs), FP8_E4M3).lost > 0.9
    assert zone_fractions(together(recorder.outputs), FP8_E5M2).lost > 0.3


def test_bf16_loses_none_and_fp8_nearly_all_between_layers(gpt):
    check_other_formats(gpt[0])


def test_scaling_brings_nearly_all_back(gpt):
    outputs = together(gpt[0].outputs)
    bare, scaled = zone_fractions(outputs, FP16), zone_fractions(outputs, FP16, loss_scale=2.0**12)
    assert scaled.lost < bare.lost / 10 and scaled.overflow == 0


def vanishing_share(updates, dtype, shrink):
    vanished = moved = 0
    for old, update in updates:
        update = update / shrink
        stays = old.to(dtype) + update.to(dtype) == old.to(dtype)
        vanished += (stays & (update != 0)).sum().item()
        moved += (update != 0).sum().item()
    return vanished / moved


def test_updates_vanish_in_bf16_more_than_in_fp16_and_most_at_a_hundredth_of_the_rate(gpt):
    fp16, bf16 = (vanishing_share(gpt[1], dtype, 1) for dtype in (torch.float16, torch.bfloat16))
    assert 0.005 < fp16 < bf16 / 3 and bf16 > 0.1
    assert vanishing_share(gpt[1], torch.bfloat16, 100) > 0.85
    assert vanishing_share(gpt[1], torch.float16, 100) > 0.5


def test_an_update_vanishes_up_to_twice_that_ratio_below_a_power_of_two():
    for fmt in (FP16, BF16):
        for weight, ratio in ((1.0, 1), (2.0 - fmt.eps, 2)):
            half_step = fmt.eps / 2
            w = torch.tensor(weight, dtype=fmt.dtype)
            assert w + torch.tensor(half_step * 0.99, dtype=fmt.dtype) == w
            assert weight / half_step == pytest.approx(
                ratio * 2 ** (fmt.significand_bits + 1), rel=fmt.eps
            )


def test_ways_to_add_as_in_the_figure():
    terms = torch.rand(2**13, generator=torch.Generator().manual_seed(0)).half()
    exact = terms.double().cumsum(0)
    kahan, naive = kahan_running_sum(terms), running_sum(terms)
    wide = running_sum(terms, torch.float32)

    def error(total, n):
        return abs(1 - total.item() / exact[n - 1].item())

    assert naive[-1] == 2048 and error(naive[-1], 2**13) > 0.45
    for n in (2**k for k in range(3, 14)):
        assert error(kahan[n - 1], n) < FP16.eps and error(pairwise_sum(terms[:n]), n) < FP16.eps
        assert error(wide[n - 1], n) < 1e-5
    assert error(wide[7], 8) == 0  # what has no point was exact


def test_one_weight_by_chance_is_noisy_and_the_mean_of_many_is_right():
    generator = torch.Generator().manual_seed(0)
    weights = torch.ones(1000)
    for _ in range(500):
        weights = stochastic_round(weights + 1e-4, BF16, generator)
    assert weights.mean().item() == pytest.approx(
        1.05, abs=0.004
    )  # 5 standard errors of a thousand weights
    assert weights.std() > 0.01


def test_rounding_1001_costs_what_is_said():
    assert 1 / 45_000 < abs(torch.tensor(1.001).half().item() - 1.001) / 1.001 < 1 / 38_000
    assert torch.tensor(1.001).bfloat16().item() == 1.0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_torchs_own_reductions_accumulate_in_float32(dtype):
    ones = torch.ones(10_000, dtype=dtype)
    nearest = torch.tensor(10_000.0, dtype=dtype)
    assert ones.sum() == nearest == (ones[None] @ ones[:, None]).squeeze()
    assert ones.cumsum(0)[-1] == nearest and ones.mean() == 1 and ones.norm() == 100


def test_the_last_rounding_of_a_sum_overflows():
    assert torch.full((1000,), 1000.0).half().sum().isinf()


def test_the_switches_that_let_a_gpu_add_in_fewer_bits_are_set_as_the_chapter_says():
    matmul = torch.backends.cuda.matmul
    assert matmul.allow_fp16_reduced_precision_reduction
    assert matmul.allow_bf16_reduced_precision_reduction
    if hasattr(matmul, "allow_fp16_accumulation"):  # since torch 2.7
        assert not matmul.allow_fp16_accumulation


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_lowest_number_is_a_mask_to_fill_in_and_not_to_add(dtype):
    lowest, hidden = torch.finfo(dtype).min, torch.tensor([True, True])
    scores = torch.tensor([-2.0, 3.0], dtype=dtype)
    assert scores.masked_fill(hidden, lowest).softmax(0).tolist() == [0.5, 0.5]
    two_masks = 2 * (hidden.to(dtype) * lowest)
    assert two_masks.isinf().all() and (scores + two_masks).softmax(0).isnan().all()
    if dtype == torch.float16:  # a score of −16 tips it over
        assert (torch.tensor([-15.99, -16.0]).half() + lowest).isinf().tolist() == [False, True]


@pytest.mark.parametrize("way", ["foreach", "fused"])
def test_adam_s_eps_dies_in_foreach_as_in_the_plain_loop_and_lives_when_fused(way):
    weights = torch.nn.Parameter(torch.ones(2, dtype=torch.float16))
    weights.grad = torch.tensor([0.0, 1e-4], dtype=torch.float16)
    torch.optim.Adam([weights], lr=1e-3, eps=1e-8, **{way: True}).step()
    assert weights.isfinite().all() == (way == "fused")
